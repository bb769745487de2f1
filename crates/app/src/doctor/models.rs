//! Checks that the manifests in the models folder are valid.

use std::path::{Path, PathBuf};

use orrery_api::{Finding, Verdict};
use orrery_catalog as catalog;
use orrery_config::Config;
use orrery_domain::spelling::nearest;
use orrery_runners::builtin;
use orrery_runners::managed::Groups;
use orrery_runners::options::is_model_file;

/// Maximum number of manifests to check.
const MANIFESTS_MAX: usize = 10_000;

pub(super) fn findings(folder: &Path, groups: &Groups) -> Vec<Finding> {
    let files = match manifest_files(folder) {
        Ok(files) => files,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let detail = format!("{} does not exist: built-in models only", folder.display());
            return vec![Finding::new("models", Verdict::Good, detail)];
        }
        Err(error) => {
            let detail = format!("{} cannot be read: {error}", folder.display());
            return vec![Finding::new("models", Verdict::Fault, detail)];
        }
    };
    let mut findings = Vec::new();
    let mut good = 0_usize;
    for file in &files {
        match check(file, Some(groups)) {
            Ok(checked) => {
                good += 1;
                let concern = checked.concern.map(|text| Finding::warning("model", text));
                findings.extend(concern.map(|one| one.about(file.display().to_string())));
            }
            Err(faults) => findings.extend(
                faults
                    .into_iter()
                    .map(|fault| Finding::fault("model", fault).about(file.display().to_string())),
            ),
        }
    }
    let detail = format!("{}: {good} of {} manifests are valid", folder.display(), files.len());
    let verdict = if good == files.len() { Verdict::Good } else { Verdict::Fault };
    findings.insert(0, Finding::new("models", verdict, detail));
    for file in files_with(folder, &["yaml", "yml"]).unwrap_or_default() {
        let detail = format!("{} is not read: manifests are TOML files", file.display());
        let toml = file.with_extension("toml");
        findings.push(
            Finding::warning("models", detail).mended_by(format!("write {}", toml.display())),
        );
    }
    findings
}

pub(super) fn manifest_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    files_with(folder, &["toml"])
}

fn files_with(folder: &Path, extensions: &[&str]) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(MANIFESTS_MAX) {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|end| extensions.iter().any(|one| end.eq_ignore_ascii_case(one)))
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Checks one manifest. Does not check the model's group if `groups` is `None`.
///
/// # Errors
/// The errors of the manifest, with file, line and column.
pub fn check(file: &Path, groups: Option<&Groups>) -> Result<catalog::Checked, Vec<String>> {
    catalog::check(file, groups).map_err(|faults| faults.iter().map(ToString::to_string).collect())
}

/// Warns about settings that name models which do not exist or do not support chat. If an upstream
/// is configured, no name is reported, because the upstream may provide the named models. Models
/// with an invalid manifest are reported by another check.
pub(super) fn unknown_names(config: &Config) -> Vec<Finding> {
    if !config.router.upstreams.is_empty() {
        return Vec::new();
    }
    let extensions = ["toml", "gguf", "onnx", "bin"];
    let files = files_with(&config.models_dir, &extensions).unwrap_or_default();
    let is_model =
        |file: &&PathBuf| file.extension().is_none_or(|end| end != "bin") || is_model_file(file);
    let local = files.iter().filter(is_model).filter_map(|file| catalog::outline(file));
    let (chat, others): (Vec<_>, Vec<_>) =
        local.partition(|model| model.serves_chat.unwrap_or(true));
    let known: Vec<&str> = chat.iter().map(|model| model.slug.as_str()).collect();
    let others: Vec<&str> = others.iter().map(|model| model.slug.as_str()).collect();
    let agent =
        [("agent.model", &config.agent.model), ("agent.eco_model", &config.agent.eco_model)];
    let agent = agent.into_iter().filter_map(|(key, name)| Some((key.to_owned(), name.as_ref()?)));
    let aliases = config.decisions.aliases.iter();
    let aliases = aliases.map(|(alias, name)| (format!("decisions.aliases.{alias}"), name));
    let unknown = agent.chain(aliases).filter(|(_, name)| !known.contains(&name.as_str()));
    unknown
        .map(|(key, name)| {
            let hint = nearest(name, &known).map(|near| format!("; did you mean {near}?"));
            let is_builtin = builtin::ALL.iter().any(|model| model.slug == name);
            let what = match is_builtin || others.contains(&name.as_str()) {
                true => "is not a chat model",
                false => "does not exist, and there is no upstream",
            };
            let hint = hint.unwrap_or_default();
            Finding::warning("model", format!("the model \"{name}\" of {key} {what}{hint}"))
                .about(key)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_accepts_missing_models_folder() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            findings(&folder.path().join("models.d"), &Groups::default())[0].verdict,
            Verdict::Good
        );
        assert!(findings(folder.path(), &Groups::default())[0].detail.contains("0 of 0"));
    }

    #[test]
    fn check_warns_of_manifest_in_yaml() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("caption.yaml"), "slug: caption\n").unwrap();
        let found = findings(folder.path(), &Groups::default());
        let [_, warning] = &found[..] else { panic!("{found:?}") };
        assert_eq!(warning.verdict, Verdict::Warning);
        let said = "caption.yaml is not read: manifests are TOML files";
        assert!(warning.detail.ends_with(said), "{}", warning.detail);
    }

    #[test]
    fn check_warns_of_server_url_without_path() {
        let folder = tempfile::tempdir().unwrap();
        let write = |url: &str| {
            let text = format!(
                "slug = 'a'\noutput_type = 'string'\n[runner]\ntype = 'openai'\nkind = 'chat'\n\
                 model = 'm'\n{url}\n"
            );
            std::fs::write(folder.path().join("a.toml"), text).unwrap();
            findings(folder.path(), &Groups::default())
        };
        for bare in
            ["url = 'http://h:9'", "url = 'http://h:9/'", "urls = ['http://g/v1', 'http://h:9']"]
        {
            let found = write(bare);
            let [_, concern] = &found[..] else { panic!("{found:?}") };
            assert_eq!(concern.verdict, Verdict::Warning);
            let said = "a.toml: runner.url is http://h:9, without a path: most servers have their \
                        API at http://h:9/v1";
            assert!(concern.detail.ends_with(said), "{}", concern.detail);
        }
        assert_eq!(write("url = 'http://h:9/v1'").len(), 1);
        let faulty = write("url = 'http://h:9/v1/chat/completions'");
        assert!(faulty[1].detail.contains("such as \"http://h:9/v1\""), "{faulty:?}");
    }

    #[test]
    fn check_warns_of_settings_with_unknown_models() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, slug: &str, output_type: &str, runner: &str| {
            let text = format!(
                "slug = '{slug}'\noutput_type = '{output_type}'\n[runner]\nurl = 'http://h/v1'\n\
                 {runner}\n"
            );
            std::fs::write(folder.path().join(file), text).unwrap();
        };
        let server = |kind: &str| format!("type = 'openai'\nmodel = 'm'\nkind = '{kind}'");
        write("chat.toml", "far/chat", "string", &server("chat"));
        write("vectors.toml", "far/vectors", "array", &server("embeddings"));
        write("http.toml", "caption", "string", "type = 'http'");
        std::fs::write(folder.path().join("tiny-chat.gguf"), "not read").unwrap();
        std::fs::write(folder.path().join("broken.toml"), "slug = 'broken'").unwrap();
        let mut config = Config::defaults();
        config.models_dir = folder.path().to_path_buf();
        let mut said = |model: &str, alias: &str| {
            config.agent.model = Some(model.to_owned());
            config.decisions.aliases = vec![("fast".to_owned(), alias.to_owned())];
            let found = unknown_names(&config).into_iter();
            found.map(|finding| finding.detail).collect::<Vec<_>>()
        };
        assert_eq!(said("tiny-chat", "far/chat"), [""; 0]);
        assert_eq!(said("broken", "far/chat"), [""; 0], "its manifest has a finding of its own");
        assert_eq!(
            said("caption", "far/vectors"),
            [
                "the model \"caption\" of agent.model is not a chat model",
                "the model \"far/vectors\" of decisions.aliases.fast is not a chat model",
            ]
        );
        assert_eq!(
            said("tiny-caht", "nope"),
            [
                "the model \"tiny-caht\" of agent.model does not exist, and there is no upstream; \
                 did you mean tiny-chat?",
                "the model \"nope\" of decisions.aliases.fast does not exist, and there is no upstream",
            ]
        );
        assert_eq!(
            said("text-sentiment", "far/chat"),
            ["the model \"text-sentiment\" of agent.model is not a chat model"]
        );
        config.router.upstreams = vec![orrery_config::Upstream::of("http://h/v1".to_owned())];
        assert!(unknown_names(&config).is_empty());
    }
}
