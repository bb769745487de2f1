//! `orrery model test` with freshly written manifests, and with workers that return no answer.

use std::fs;

use crate::support::service::Setup;

const TEMPLATE: &str = "slug = 'greet'\noutput_type = 'string'\n\
    [runner]\ntype = 'builtin'\nname = 'text-template'\n";
const INPUT: &str = r#"{"template": "Hello {{ name }}", "values": {"name": "Ada"}}"#;

#[test]
fn model_test_reads_new_manifest_and_names_broken_one() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let manifest = folder.path().join("models.d/greet.toml");
    let _service = setup.start();
    let test = ["model", "test", "greet", "--input", INPUT];
    assert!(setup.fail(&test).contains("model not found"));
    for round in 0..10 {
        // Test the manifest immediately: the service may not have loaded it yet.
        fs::write(&manifest, format!("title = 'Round {round}'\n{TEMPLATE}")).unwrap();
        assert_eq!(setup.run(&test).trim(), "\"Hello Ada\"");
        fs::remove_file(&manifest).unwrap();
        assert!(setup.fail(&test).contains("model not found"));
    }
    fs::write(&manifest, "slug = 'greet'\nconcurrency = 0\n").unwrap();
    let said = setup.fail(&test);
    assert!(said.contains("is invalid; `orrery model check "), "{said}");
    // The command reports all errors at once, each with its location.
    let (is_good, found, _) = setup.try_run(&["model", "check", manifest.to_str().unwrap()]);
    assert!(!is_good && found.contains(":2:15: `concurrency`"), "{found}");
    assert!(found.contains("`runner` is missing") && !found.contains(":0:0"), "{found}");
    // If a file is not valid TOML, the command reports nothing else.
    fs::write(&manifest, "slug = 'greet\nconcurrency = 0\n").unwrap();
    let (_, found, _) = setup.try_run(&["model", "check", manifest.to_str().unwrap()]);
    assert_eq!(found.lines().count(), 1, "{found}");
    assert!(found.contains(":1:") && found.contains("not TOML"), "{found}");
    let missing = folder.path().join("none.toml");
    let (_, found, _) = setup.try_run(&["model", "check", missing.to_str().unwrap()]);
    assert!(found.contains("none.toml: cannot open") && !found.contains(":0:0"), "{found}");
}

#[test]
fn model_check_compares_group_with_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let groups = "[groups.gpu0]\nmemory = '1GiB'\n";
    let setup = Setup::new(folder.path(), &folder.path().join("data"), groups);
    let file = folder.path().join("models.d/talk.toml");
    let check = |group: &str, memory: &str| {
        let runner = "type = 'openai'\nkind = 'chat'\nmodel = 'm'\nstart = ['sh', '${PORT}']";
        let group = format!("group = '{group}'\nmemory = '{memory}'");
        let text = format!("slug = 'talk'\noutput_type = 'string'\n[runner]\n{runner}\n{group}\n");
        fs::write(&file, text).unwrap();
        setup.try_run(&["model", "check", file.to_str().unwrap()]).1
    };
    assert!(check("gpu0", "1GiB").contains("talk is valid"));
    let large = check("gpu0", "2GiB");
    assert!(large.contains("it needs 2147483648 bytes, but its group 'gpu0' has"), "{large}");
    let lost = check("gpu1", "1GiB");
    assert!(lost.contains("its group 'gpu1' is not in the configuration"), "{lost}");
}

#[test]
fn manifest_of_builtin_keeps_its_concurrency() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    setup.add_model("greet", TEMPLATE);
    setup.add_model(
        "few",
        &TEMPLATE.replace("greet", "few").replace("[runner]", "concurrency = 3\n[runner]"),
    );
    let _service = setup.start();
    let listed: serde_json::Value =
        serde_json::from_str(&setup.run(&["model", "list", "--json"])).unwrap();
    let concurrency = |slug: &str| {
        let models = listed["models"].as_array().unwrap().iter();
        models.clone().find(|model| model["slug"] == slug).unwrap()["concurrency"].clone()
    };
    assert_eq!(concurrency("greet"), concurrency("text-template"));
    assert_eq!(concurrency("few"), 3);
}

#[test]
fn model_list_shows_the_upstreams() {
    let folder = tempfile::tempdir().unwrap();
    let table = "[[router.upstreams]]\nname = 'spare'\nurl = 'http://127.0.0.1:9/v1'\n\
                 keys = ['sk-one', 'sk-two']\npriority = 3\nmodels = ['a']\n";
    let setup = Setup::new(folder.path(), &folder.path().join("data"), table);
    let _service = setup.start();
    let (is_good, table, notes) = setup.try_run(&["model", "list"]);
    assert!(is_good && table.contains("UPSTREAM"), "{table}");
    let row = table.lines().find(|line| line.starts_with("spare")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    let found = ["spare", "openai", "127.0.0.1:9/v1", "used", "2", "3", "1", "0", "0", "0"];
    assert_eq!(cells[..10], found);
    assert!(notes.contains("the upstream spare does not list its models"), "{notes}");
    assert!(!table.contains("sk-") && !notes.contains("sk-"), "{table} {notes}");
    let listed: serde_json::Value =
        serde_json::from_str(&setup.run(&["model", "list", "--json"])).unwrap();
    assert_eq!(listed["upstreams"][0]["spend"], 0.0);
}

/// Returns the manifest of a worker.
fn program(slug: &str, command: &[&str], timeout: &str) -> String {
    format!(
        "slug = '{slug}'\noutput_type = 'string'\ntimeout = '{timeout}'\n\
         [runner]\ntype = 'command'\ncommand = {command:?}\n"
    )
}

#[test]
fn worker_environment_unbuffers_python() {
    // A worker that answers each job with the variable's value.
    const ECHO: &str = "while read -r job; do id=${job#*:}; id=${id%%,*}; \
        echo '{\"id\": '$id', \"output\": \"'$PYTHONUNBUFFERED'\"}'; done";
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    setup.add_model("echo", &program("echo", &["sh", "-c", ECHO], "1m"));
    let _service = setup.start();
    assert_eq!(setup.run(&["model", "test", "echo", "--input", "{}"]).trim(), "\"1\"");
}

#[test]
#[ignore = "needs python3: run tests/run"]
fn python_worker_answers_without_flush() {
    const WORKER: &str = "import json, sys\nfor line in sys.stdin:\n    \
        print(json.dumps({'id': json.loads(line)['id'], 'output': 'done'}))\n";
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let worker = program("worker", &["python3", "-c", WORKER], "1m");
    setup.add_model("worker", &worker);
    let _service = setup.start();
    assert_eq!(setup.run(&["model", "test", "worker", "--input", "{}"]).trim(), "\"done\"");
}

#[test]
#[cfg(feature = "llama")]
fn model_file_without_manifest_loads_below_relative_folder() {
    use crate::support::gguf;

    let folder = tempfile::tempdir().unwrap();
    // Relative paths in the configuration are relative to the folder in which the service starts.
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    gguf::write(&folder.path().join("models.d/Tiny.gguf"), &gguf::SMALL, "tiny", 1);
    setup.run(&["reload"]);
    let test = ["model", "test", "tiny", "--input", r#"{"prompt": "hi", "max_tokens": 4}"#];
    setup.run(&test);
    // A relative path on the command line is relative to the command's working folder.
    setup.add_model("beside", "slug = 'beside'\n[runner]\ntype = 'llm'\nfile = 'Tiny.gguf'\n");
    setup.run(&["model", "check", "models.d/beside.toml"]);
}

#[test]
fn model_test_explains_missing_answer_of_worker() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    setup.add_model("silent", &program("silent", &["sleep", "3600"], "1s"));
    setup.add_model("ended", &program("ended", &["sh", "-c", "read -r job"], "1m"));
    setup.add_model("failed", &program("failed", &["sh", "-c", "echo no torch >&2; exit 1"], "1m"));
    setup.add_model("chatty", &program("chatty", &["sh", "-c", "echo loading; sleep 60"], "1m"));
    let _service = setup.start();
    let failed = ["model", "test", "failed", "--input", "{}"];
    let (_, printed, said) = setup.try_run(&failed);
    let all = format!("{printed}{said}");
    assert!(all.contains("no torch") && !all.contains("mode = \"once\""), "{all}");
    for (slug, hint) in [
        ("silent", "and flush it?"),
        ("chatty", "messages belong on standard error"),
        ("ended", "set mode = \"once\""),
    ] {
        let (is_good, printed, said) = setup.try_run(&["model", "test", slug, "--input", "{}"]);
        let all = format!("{printed}{said}");
        assert!(!is_good && all.contains("hint: ") && all.contains(hint), "{slug}: {all}");
    }
}
