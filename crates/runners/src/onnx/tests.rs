//! Tests the manifests of this runner type. Integration tests cover the processes.

use serde_json::json;

use super::*;
use orrery_config::reader::Reader;

fn read(text: &str, folder: &Path) -> Result<Options, Vec<String>> {
    let reader = Reader::new(text);
    let document = reader.document();
    let options = Section::root(&reader, &document, |root| Options::read(root, folder));
    drop(document);
    let (errors, _known) = reader.finish();
    let said: Vec<String> = errors.into_iter().map(|error| error.message).collect();
    options.filter(|_| said.is_empty()).ok_or(said)
}

#[test]
fn onnx_options_have_defaults_and_limits() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.onnx"), files::line().bytes()).unwrap();
    let options = read("file = 'm.onnx'", folder.path()).unwrap();
    assert_eq!((options.idle_unload, options.load), (DEFAULT_IDLE, Load::OnDemand));
    assert!(options.file.is_absolute() && options.threads >= 1);
    assert!(
        options.memory_bytes > DEFAULT_MEMORY
            && options.fault() == worker::unsupported().map(str::to_owned)
    );
    for (more, said) in [
        ("", "`file` is missing"),
        ("file = 'absent.onnx'", "absent.onnx is not a file"),
        ("file = 'm.onnx'\nthreads = 0", "`threads`: expected a whole number from 1"),
        ("file = 'm.onnx'\nmemory_bytes = '1MiB'", "`memory_bytes`"),
        ("file = 'm.onnx'\ncontext = 16", "unknown key `context`"),
        (
            "file = 'm.onnx'\n[inputs.q]\nkind = 'image'",
            "the model has no input 'q'; its inputs are x",
        ),
        (
            "file = 'm.onnx'\n[inputs.x]\nkind = 'image'",
            "the input 'x' takes float32 [n], not an image",
        ),
        (
            "file = 'm.onnx'\n[outputs.q]\nlabels = ['a']",
            "the model has no output 'q'; its outputs are y",
        ),
        ("file = 'm.onnx'\n[outputs.y]\nlabels = 'absent.txt'", "absent.txt"),
    ] {
        let errors = read(more, folder.path()).unwrap_err();
        assert!(errors.iter().any(|error| error.contains(said)), "{errors:?}, not {said}");
    }
}

#[test]
fn onnx_interface_follows_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    std::fs::write(&path, files::line().bytes()).unwrap();
    let options = Options::of_file(path.clone());
    let interface = options.interface().unwrap();
    assert_eq!(interface.output_type, OutputType::Object);
    assert!(interface.schema.check(json!({"x": [1, 2.5]})).is_ok());
    assert!(interface.schema.check(json!({"x": ["a"]})).is_err());
    std::fs::write(&path, "no model at all").unwrap();
    let broken = Options::of_file(path);
    assert!(broken.interface().is_none() && broken != options);
    assert!(broken.fault().unwrap().contains("m.onnx is "));
}

#[test]
fn onnx_request_names_missing_and_unknown_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    std::fs::write(&path, files::powers(1).bytes()).unwrap();
    let options = Options::of_file(path);
    for (input, says) in [
        (json!([]), "the input must be an object"),
        (json!({"x": [[1]]}), "'z' is missing"),
        (json!({"x": [[1]], "q": 1}), "the model has no input 'q'; its inputs are x, z"),
    ] {
        assert_eq!(options.request(&input, &[]).unwrap_err(), says);
    }
}
