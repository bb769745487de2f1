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
fn llm_options_have_defaults_and_limits() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.gguf"), "GGUF").unwrap();
    let options = read("file = 'm.gguf'", folder.path()).unwrap();
    assert_eq!((options.context, options.parallel, options.batch), (8192, 4, 256));
    assert_eq!((options.idle_unload, options.load), (DEFAULT_IDLE, Load::OnDemand));
    assert!(options.file.is_absolute() && options.threads >= 1);
    for (more, said) in [
        ("", "`file` is missing"),
        ("file = 'absent.gguf'", "absent.gguf is not a file"),
        ("file = 'm.gguf'\ncontext = 0", "`context`: expected a whole number from 16"),
        ("file = 'm.gguf'\nparallel = 65", "`parallel`: expected a whole number from 1 to 64"),
        ("file = 'm.gguf'\nload = 'later'", "`load`: expected one of \"on_demand\", \"at_start\""),
        ("file = 'm.gguf'\nidle_unload = '1ms'", "`idle_unload`"),
        ("file = 'm.gguf'\nmemory_bytes = '1MiB'", "`memory_bytes`"),
        ("file = 'm.gguf'\nchat_template = 'absent'", "absent is not a file"),
        ("file = 'm.gguf'\nlora = 'absent'", "absent is not a file"),
        ("file = 'm.gguf'\nlora_scale = 2", "`lora_scale` requires `lora`"),
        ("file = 'm.gguf'\nlora = 'm.gguf'\nlora_scale = 101", "`lora_scale`: expected a number"),
        ("file = 'm.gguf'\ngpu = true", "unknown key `gpu`"),
    ] {
        let errors = read(more, folder.path()).unwrap_err();
        assert!(errors.iter().any(|error| error.contains(said)), "{errors:?}, not {said}");
    }
}

#[test]
fn llm_options_differ_after_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, "GGUF").unwrap();
    let before = Options::of_file(path.clone());
    assert_eq!(before, Options::of_file(path.clone()));
    std::fs::write(&path, "no model at all").unwrap();
    assert_ne!(before.header, Options::of_file(path).header);
}

#[test]
fn llm_interface_follows_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::of_file(folder.path().join("absent.gguf"));
    assert!(options.header().is_none());
    let interface = options.interface().unwrap();
    assert_eq!(interface.output_type, OutputType::String);
    assert!(chat_schema()["properties"]["seed"].is_object());
    assert_eq!(
        chat_schema()["anyOf"],
        json!([{"required": ["prompt"]}, {"required": ["messages"]}])
    );
}
