//! whisper.cpp, which turns speech into text, linked with the ggml of llama.cpp.
//!
//! Both libraries use ggml, and a program can contain it only once. The build script therefore
//! compiles the one source file of whisper.cpp against the ggml that `llama-cpp-sys-2` builds. The
//! source is part of the package `whisper-rs-sys`, whose own build script would build a second
//! ggml; `.cargo/config.toml` replaces that script. If the versions of the two packages no longer
//! fit, the compilation fails.
//!
//! The crate contains no code of its own: [`whisper_rs`] is the safe interface.

// Used by the build script and the linker only.
use llama_cpp_sys_2 as _;
use whisper_rs_sys as _;

pub use whisper_rs;
