//! Tests the catalog of a directory whose files change.

use serde_json::json;

use super::*;

fn manifest(slug: &str, title: &str) -> String {
    format!(
        "slug = '{slug}'\ntitle = '{title}'\noutput_type = 'string'\n\
         [cost]\ntype = 'fixed'\namount = 0.002\n\
         [runner]\ntype = 'builtin'\nname = 'text-template'\n"
    )
}

fn open() -> (tempfile::TempDir, Catalog) {
    let folder = tempfile::tempdir().unwrap();
    let (catalog, report) = Catalog::open(folder.path().to_path_buf(), Dependencies::none());
    assert_eq!(report.loaded, builtin::ALL.len(), "{:?}", report.errors);
    (folder, catalog)
}

#[test]
fn catalog_reload_keeps_last_good_version_until_file_is_removed() {
    let (folder, catalog) = open();
    let path = folder.path().join("a.toml");
    fs::write(&path, manifest("team/a", "First")).unwrap();
    assert!(catalog.reload().errors.is_empty());
    assert_eq!(catalog.get("team/a").unwrap().title, "First");
    fs::write(&path, "slug = ").unwrap();
    let report = catalog.reload();
    assert_eq!(report.errors.len(), 1);
    assert_eq!(catalog.get("team/a").unwrap().title, "First");
    fs::write(&path, manifest("team/a", "Second")).unwrap();
    assert!(catalog.reload().errors.is_empty());
    assert_eq!(catalog.get("team/a").unwrap().title, "Second");
    fs::remove_file(&path).unwrap();
    assert_eq!(catalog.reload().removed, ["team/a"]);
    assert!(catalog.get("team/a").is_none());
}

#[test]
fn catalog_check_reports_prices_without_effect() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.toml");
    let concern = |kind: &str, rate: &str| {
        let text = format!(
            "slug = 'm'\noutput_type = 'object'\n[cost]\ntype = 'usage_based'\n{rate} = 1\n\
             [runner]\ntype = 'openai'\nurl = 'http://h/v1'\nmodel = 'm'\nkind = '{kind}'\n"
        );
        fs::write(&path, text).unwrap();
        check(&path, None).unwrap().concern.unwrap_or_default()
    };
    let rates = [
        ("per_audio_minute", "transcriptions"),
        ("per_million_characters", "speech"),
        ("per_image", "images"),
    ];
    for (rate, own) in rates {
        for (_, kind) in rates {
            let said = concern(kind, rate);
            let expected = format!("cost.{rate} has no effect, because the model does not serve");
            assert_eq!(said.contains(&expected), kind != own, "{kind}: {said}");
        }
        assert_eq!(concern(own, "per_second"), "");
    }
}

#[test]
fn catalog_reads_extensions_in_any_case() {
    let (folder, catalog) = open();
    for (file, slug) in [("a.TOML", "a"), ("b.Toml", "b"), ("c.toml", "c")] {
        fs::write(folder.path().join(file), manifest(slug, file)).unwrap();
    }
    fs::write(folder.path().join("d.TOML"), "slug = ").unwrap();
    fs::write(folder.path().join("M.GGUF"), "no model").unwrap();
    let report = catalog.reload();
    let broken: Vec<_> =
        report.errors.iter().map(|error| error.file.file_name().unwrap()).collect();
    assert!(broken.contains(&"d.TOML".as_ref()), "{broken:?}");
    for slug in ["a", "b", "c", "m"] {
        let is_served = catalog.get(slug).is_some();
        assert!(is_served || broken.contains(&"M.GGUF".as_ref()), "{slug}: {broken:?}");
    }
}

#[test]
fn catalog_keeps_its_models_while_the_folder_cannot_be_read() {
    let (folder, catalog) = open();
    fs::write(folder.path().join("a.toml"), manifest("team/a", "First")).unwrap();
    assert!(catalog.reload().errors.is_empty() && catalog.unreadable().is_none());
    let (models, away) = (folder.path().to_path_buf(), folder.path().with_extension("away"));
    // First the directory is missing, then a file is in its place, as after a failed mount.
    fs::rename(&models, &away).unwrap();
    for is_file in [false, true] {
        if is_file {
            fs::write(&models, "").unwrap();
        }
        let report = catalog.reload();
        let [error] = report.errors.as_slice() else { panic!("{:?}", report.errors) };
        assert!(error.message.contains("the models folder cannot be read"), "{error}");
        assert_eq!((report.removed.len(), report.changed.len()), (0, 0));
        assert_eq!(catalog.get("team/a").unwrap().title, "First");
        assert!(catalog.unreadable().is_some());
    }
    fs::remove_file(&models).unwrap();
    fs::rename(&away, &models).unwrap();
    assert!(catalog.reload().errors.is_empty() && catalog.unreadable().is_none());
}

#[test]
fn catalog_broken_manifest_holds_back_model_files_it_may_name() {
    let (folder, catalog) = open();
    for name in ["named.gguf", "same.gguf", "other.gguf"] {
        fs::write(folder.path().join(name), "not a model").unwrap();
    }
    fs::write(folder.path().join("a.toml"), "slug = 'a'\n[runner]\nfile = 'named.gguf'\ntype = ")
        .unwrap();
    fs::write(folder.path().join("same.toml"), "slug = ").unwrap();
    let errors = catalog.reload().errors;
    assert!(
        errors.iter().all(|error| error.file.extension().is_some_and(|end| end == "toml")),
        "{errors:?}"
    );
    assert!(catalog.get("other").is_some(), "no manifest refers to it");
    for (slug, manifest) in [("named", "a.toml"), ("same", "same.toml")] {
        assert!(catalog.get(slug).is_none());
        let reason = catalog.unserved(slug).unwrap().reason;
        assert!(reason.contains(manifest), "{reason}");
    }
}

#[test]
fn catalog_suggests_similar_slug() {
    let (_folder, catalog) = open();
    for (slug, near) in [
        ("text-sumary", Some("text-summary")),
        ("Text-Summary", Some("text-summary")),
        ("IMAGE-QR", Some("image-qr")),
        ("gpt-4o", None),
    ] {
        assert_eq!(catalog.nearest(slug).as_deref(), near, "{slug}");
    }
}

#[test]
fn catalog_duplicate_slug_error_names_both_files() {
    let (folder, catalog) = open();
    for name in ["a.toml", "b.toml", "c.txt"] {
        fs::write(folder.path().join(name), manifest("same", name)).unwrap();
    }
    let report = catalog.reload();
    let [error] = report.errors.as_slice() else { panic!("{:?}", report.errors) };
    let said = error.to_string();
    assert!(
        said.contains("b.toml")
            && said.contains("is already defined in ")
            && said.contains("a.toml"),
        "{said}"
    );
    assert_eq!(catalog.get("same").unwrap().title, "a.toml");
}

#[test]
fn catalog_manifest_overrides_builtin_model() {
    let (folder, catalog) = open();
    fs::write(folder.path().join("t.toml"), manifest("text-template", "Ours")).unwrap();
    assert!(catalog.reload().errors.is_empty());
    assert_eq!(catalog.get("text-template").unwrap().title, "Ours");
    assert_eq!(catalog.len(), builtin::ALL.len());
}

#[test]
fn catalog_model_detail_has_every_specified_key() {
    let (folder, catalog) = open();
    fs::write(folder.path().join("a.toml"), manifest("a", "A")).unwrap();
    assert!(catalog.reload().errors.is_empty());
    let model = catalog.get("a").unwrap();
    let expect = json!({
        "title": "A",
        "slug": "a",
        "version": "0.0.1",
        "output_type": "string",
        "request_schema": {"type": "object"},
        "cost": {
            "currency": "USD",
            "type": "fixed",
            "amount": 0.002,
            "unit": "execution",
            "estimate": "$0.002 per execution",
            "description": "Pricing is an estimate and may change as rates are updated.",
        },
    });
    assert_eq!(serde_json::to_string(&detail(&model)).unwrap(), expect.to_string());
    let free = catalog.get("image-qr").unwrap();
    assert_eq!(serde_json::to_value(detail(&free)).unwrap()["cost"], Value::Null);
}

#[test]
fn catalog_every_model_has_openapi_document() {
    let (_folder, catalog) = open();
    for model in catalog.list() {
        let document = openapi(&model);
        let slug = &document["paths"]["/v1/prediction/"]["post"]["requestBody"]["content"]["application/json"]
            ["schema"]["properties"]["model"]["enum"][0];
        assert_eq!(slug, model.slug.as_str());
        assert_eq!(document["openapi"], "3.0.3");
        assert_eq!(document["info"]["title"], model.title);
        assert!(document["components"]["schemas"]["Input"]["properties"].is_object());
    }
}

#[test]
fn manifest_with_exploding_schema_is_rejected_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut definitions = serde_json::Map::new();
    for level in 0..40 {
        let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
        definitions.insert(format!("d{level}"), json!({"oneOf": [next, next]}));
    }
    definitions.insert("d40".to_owned(), json!({}));
    let schema = json!({"$ref": "#/$defs/d0", "$defs": definitions});
    fs::write(folder.path().join("s.json"), schema.to_string()).unwrap();
    let path = folder.path().join("a.toml");
    fs::write(&path, format!("request_schema_file = 's.json'\n{}", manifest("a", "A"))).unwrap();
    let faults = check(&path, None).unwrap_err();
    let [error] = faults.as_slice() else { panic!("{faults:?}") };
    assert_eq!((error.line, error.column), (1, 23));
    let expected = "`request_schema_file`: a schema may expand to at most 100000";
    assert!(error.message.contains(expected), "{error}");
}

#[test]
fn catalog_rejects_special_files_and_loads_the_rest() {
    let (folder, catalog) = open();
    let of = |name: &str| folder.path().join(name);
    for pipe in ["pipe.toml", "pipe.gguf"] {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, of(pipe), rustix::fs::FileType::Fifo, mode, 0)
            .unwrap();
    }
    let _listener = std::os::unix::net::UnixListener::bind(of("socket.toml")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", of("zero.toml")).unwrap();
    fs::write(of("z.toml"), manifest("team/z", "Good")).unwrap();
    let report = catalog.reload();
    for refused in ["pipe.toml", "socket.toml", "zero.toml"] {
        let error = report.errors.iter().find(|error| error.file == of(refused)).unwrap();
        assert!(error.message.contains("not a regular file"), "{error:?}");
    }
    assert_eq!(catalog.get("team/z").unwrap().title, "Good");
}

#[test]
fn catalog_rejects_world_writable_programs() {
    use std::os::unix::fs::PermissionsExt as _;

    let (folder, catalog) = open();
    let path = folder.path().join("a.toml");
    let program = "slug = 'team/a'\noutput_type = 'string'\n\
                   [runner]\ntype = 'command'\ncommand = ['/bin/true']\n";
    fs::write(&path, program).unwrap();
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    for (folder_mode, mode) in [(0o777, 0o644), (0o1777, 0o644), (0o755, 0o646)] {
        set(folder.path(), folder_mode).unwrap();
        set(&path, mode).unwrap();
        let errors = catalog.reload().errors;
        assert!(errors[0].message.contains("chmod o-w"), "{errors:?}");
    }
    set(&path, 0o664).unwrap();
    assert!(catalog.reload().errors.is_empty());
    // Whoever can write to the folder of a link's target can replace the target. The same applies
    // to a link to a link.
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("b.toml"), program.replace("team/a", "team/b")).unwrap();
    std::os::unix::fs::symlink(other.path().join("b.toml"), other.path().join("link")).unwrap();
    for target in ["b.toml", "link"] {
        let link = folder.path().join("b.toml");
        std::os::unix::fs::symlink(other.path().join(target), &link).unwrap();
        set(other.path(), 0o777).unwrap();
        let errors = catalog.reload().errors;
        assert!(errors[0].message.contains("has mode 0777"), "{errors:?}");
        set(other.path(), 0o755).unwrap();
        assert!(catalog.reload().errors.is_empty());
        fs::remove_file(link).unwrap();
    }
}

#[test]
fn catalog_rejects_started_servers_that_others_can_change() {
    use std::os::unix::fs::PermissionsExt as _;

    let (folder, catalog) = open();
    let path = folder.path().join("a.toml");
    let server = "slug = 'team/a'\noutput_type = 'string'\n\
                  [runner]\ntype = 'http'\nstart = ['/bin/true']\n";
    fs::write(&path, server).unwrap();
    assert!(catalog.reload().errors.is_empty());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o646)).unwrap();
    let errors = catalog.reload().errors;
    assert!(errors[0].message.contains("a.toml has mode 0646"), "{errors:?}");
}

#[test]
fn catalog_rejects_programs_of_other_users() {
    use std::os::unix::fs::{PermissionsExt as _, chown};

    let (folder, catalog) = open();
    let path = folder.path().join("a.toml");
    let program = "slug = 'team/a'\noutput_type = 'string'\n\
                   [runner]\ntype = 'command'\ncommand = ['/bin/sh', 'run.sh']\n";
    fs::write(&path, program).unwrap();
    let script = folder.path().join("run.sh");
    fs::write(&script, "").unwrap();
    assert!(catalog.reload().errors.is_empty());
    fs::set_permissions(&script, fs::Permissions::from_mode(0o646)).unwrap();
    fs::write(&path, format!("{program}\n")).unwrap();
    let errors = catalog.reload().errors;
    assert!(errors[0].message.contains("run.sh has mode 0646"), "{errors:?}");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    // Only root can change the owner of a file.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for owned in [&script, &path, &folder.path().to_path_buf()] {
        chown(owned, Some(4711), None).unwrap();
        let errors = catalog.reload().errors;
        assert!(errors[0].message.contains("belongs to the user 4711"), "{errors:?}");
        chown(owned, Some(0), None).unwrap();
    }
    assert!(catalog.reload().errors.is_empty());
}
