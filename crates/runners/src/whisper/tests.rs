//! Tests the manifests of this runner type. Integration tests cover the processes.

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
fn whisper_options_have_defaults_and_limits() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ggml-m.bin"), "lmgg").unwrap();
    let options = read("file = 'ggml-m.bin'", folder.path()).unwrap();
    assert_eq!((options.beam, options.language.as_deref()), (DEFAULT_BEAM, None));
    assert_eq!((options.idle_unload, options.load), (DEFAULT_IDLE, Load::OnDemand));
    let program = options.program();
    assert!(program.fault.unwrap().contains("ggml-m.bin is cut off"));
    let options = read("file = 'ggml-m.bin'\nlanguage = 'de'\nbeam = 1", folder.path()).unwrap();
    assert_eq!(options.program().arguments, ["--beam", "1", "--language", "de"]);
    for (more, said) in [
        ("", "`file` is missing"),
        ("file = 'absent.bin'", "absent.bin is not a file"),
        ("file = 'ggml-m.bin'\nbeam = 9", "`beam`: expected a whole number from 1 to 8"),
        ("file = 'ggml-m.bin'\nlanguage = 'en\\u0000'", "not the code of a language"),
        ("file = 'ggml-m.bin'\nlanguage = \"d e\"", "not the code of a language"),
        ("file = 'ggml-m.bin'\nthreads = 0", "`threads`"),
        ("file = 'ggml-m.bin'\ncontext = 10", "unknown key `context`"),
    ] {
        let errors = read(more, folder.path()).unwrap_err();
        assert!(errors.iter().any(|error| error.contains(said)), "{errors:?}, not {said}");
    }
}

#[test]
fn whisper_files_are_recognized_by_name() {
    for (name, is_model) in [
        ("ggml-tiny.bin", true),
        ("models/ggml-large-v3-q5_0.bin", true),
        ("GGML-Base.BIN", true),
        ("pytorch_model.bin", false),
        ("ggml-tiny.gguf", false),
        ("my-ggml-tiny.bin", false),
    ] {
        assert_eq!(is_model_file(Path::new(name)), is_model, "{name}");
    }
}

#[test]
fn prediction_becomes_the_fields_of_a_form() {
    let input = json!({
        "audio": "data:,", "language": "en", "temperature": 0.5, "words": true, "translate": false,
    });
    let fields = fields(&input);
    let named: Vec<(&str, &str)> =
        fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        named,
        [("language", "en"), ("temperature", "0.5"), ("timestamp_granularities[]", "word")]
    );
    let text = String::from_utf8(ask::encode(&fields)).unwrap();
    assert!(
        text.starts_with(r#"{"fields":[["language","en"],"#) && text.ends_with("]}\n"),
        "{text}"
    );
}
