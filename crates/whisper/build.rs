//! Compiles whisper.cpp against the ggml of llama.cpp: see `src/lib.rs`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The folder of the package with the source of whisper.cpp, in cargo's registry, and in a folder
/// of vendored packages.
const SOURCES: [&str; 2] = ["whisper-rs-sys-0.15.0", "whisper-rs-sys"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    // Below the folder into which llama.cpp is installed: `lib/cmake`.
    let ggml = PathBuf::from(variable("DEP_LLAMA_GGML_CMAKE_DIR")?);
    let installed = ggml.join("../..").canonicalize()?;
    let whisper = source(&installed)?;
    let file = whisper.join("src/whisper.cpp");
    println!("cargo:rerun-if-changed={}", file.display());
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        // Without optimization, the engine is too slow even for tests.
        .opt_level(3)
        .define("NDEBUG", None)
        .define("WHISPER_VERSION", format!("\"{}\"", version(&whisper)?).as_str())
        .include(installed.join("include"))
        .include(whisper.join("include"))
        .include(whisper.join("src"))
        .flag("-pthread")
        .warnings(false)
        .cargo_metadata(false)
        .file(file)
        .try_compile("orrery_whisper_cpp")?;
    println!("cargo:rustc-link-search=native={}", variable("OUT_DIR")?);
    // `whisper-rs` calls the functions, but some linkers read its code after this library.
    println!("cargo:rustc-link-lib=static:+whole-archive=orrery_whisper_cpp");
    Ok(())
}

/// Returns the folder of whisper.cpp, which is beside the package with llama.cpp.
fn source(installed: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let cache = fs::read_to_string(installed.join("build/CMakeCache.txt"))?;
    let llama = cache.lines().find_map(|line| line.strip_prefix("CMAKE_HOME_DIRECTORY:INTERNAL="));
    let packages = Path::new(llama.ok_or("llama.cpp's build does not name its source")?)
        .ancestors()
        .nth(2)
        .ok_or("llama.cpp's source is in no package")?;
    let mut found = SOURCES.iter().map(|name| packages.join(name).join("whisper.cpp"));
    let found = found.find(|folder| folder.is_dir());
    Ok(found.ok_or_else(|| format!("{} does not contain {}", packages.display(), SOURCES[0]))?)
}

/// Returns the version of whisper.cpp.
fn version(whisper: &Path) -> Result<String, Box<dyn Error>> {
    let script = fs::read_to_string(whisper.join("CMakeLists.txt"))?;
    let mut lines = script.lines();
    let version = lines.find_map(|line| line.strip_prefix("project(\"whisper.cpp\" VERSION "));
    Ok(version.ok_or("whisper.cpp has no version")?.trim_end_matches(')').to_owned())
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("{name}: {error}"))
}
