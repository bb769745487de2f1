//! The contents of the manual pages that are not in the help of the commands.

/// A file or an environment variable.
pub(crate) struct Term {
    pub path: &'static str,
    pub text: &'static str,
    /// The commands that use the file or variable; empty for all commands.
    pub commands: &'static [&'static str],
}

impl Term {
    /// Returns whether the page of the command with these words lists this term. The page of
    /// `orrery` lists all terms.
    pub(super) fn is_of(&self, words: &str) -> bool {
        let first = words.split(' ').next().unwrap_or_default();
        words.is_empty() || self.commands.is_empty() || self.commands.contains(&first)
    }
}

const fn term(path: &'static str, text: &'static str, commands: &'static [&'static str]) -> Term {
    Term { path, text, commands }
}

pub(super) const FILES: [Term; 6] = [
    term(
        "orrery-data",
        "The data folder in the current folder, of a service without a configuration file.",
        &[],
    ),
    term("/etc/orrery/config.toml", "The configuration of an installed service.", &[]),
    term("/var/lib/orrery", "The data folder of an installed service.", &[]),
    term(
        "/etc/orrery/models.d",
        "The manifests of an installed service, one TOML file for each model.",
        &["serve", "check", "model"],
    ),
    term(
        "/etc/systemd/system/orrery.service",
        "The unit that `orrery service install` writes.",
        &["service"],
    ),
    term(
        "control.sock, control.token",
        "The socket in the data folder with which commands reach the running service, and its token.",
        &["serve"],
    ),
];

pub(crate) const ENVIRONMENT: [Term; 6] = [
    term("ORRERY_CONFIG", "The configuration file, if --config is not given.", &[]),
    term("HF_ENDPOINT", "The hub for `orrery model pull`, if --endpoint is not given.", &["model"]),
    term("NO_COLOR", "If it is not empty, output has no colors.", &[]),
    term(
        "CREDENTIALS_DIRECTORY",
        "The folder of the credentials that ${credential:NAME} in the configuration names; systemd \
         sets it.",
        &["serve", "check"],
    ),
    term(
        "ORRERY_BACKUP_FILE",
        "The path of the finished backup, for the program in backup.after.",
        &["serve"],
    ),
    term(
        "NOTIFY_SOCKET",
        "Where the service reports that it is ready; systemd sets it.",
        &["serve"],
    ),
];

pub(crate) const EXIT_STATUS: [(&str, &str); 3] = [
    ("0", "Success."),
    ("1", "Failure. Standard error contains the reason."),
    ("2", "The command line is invalid."),
];

/// The meaning of exit status 1 for commands that check or test something.
pub(crate) const FAILURES: [(&str, &str); 10] = [
    ("check", "A problem would prevent a start, or the check failed."),
    ("doctor", "At least one problem was found (with --quiet: an error), or the diagnosis failed."),
    ("alerts test", "The message was not delivered, or no receiver is configured."),
    ("verify", "The backup or the store is damaged, or it could not be read."),
    ("salvage", "Not everything could be read."),
    ("model check", "A manifest is invalid."),
    ("model add", "The model cannot be used yet, or the manifest could not be written."),
    ("model test", "The model failed, or it could not be run."),
    ("workflow run", "The execution failed or was cancelled, or it could not be started."),
    ("endpoint test", "The test event was not delivered."),
];

/// Number of examples that the page of `orrery` shows, from the start of the list.
pub(super) const FIRST_DAY: usize = 6;

/// The examples: a description and the command line. Every top-level command has an example.
pub(crate) const EXAMPLES: &[(&str, &str)] = &[
    ("Run the service with its data in the current folder", "orrery serve"),
    (
        "Create an API key that is valid for 90 days",
        "orrery key create --name laptop --expires 90d",
    ),
    ("List the models", "orrery model list"),
    (
        "Create a key that may only chat with one model, for 10 USD a month",
        "orrery key create --name team --scope chat --models llama --budget 10/1mo",
    ),
    ("Change the restrictions of a key", "orrery key update team --rpm 60 --budget none"),
    (
        "Give a key a new text, with a day to replace the old one",
        "orrery key rotate team --grace 24h",
    ),
    (
        "Run a model on one input",
        "orrery model test text-sentiment --input '{\"text\": \"Good!\"}'",
    ),
    (
        "Run a model on this machine for a service on another machine",
        "orrery worker --server https://box.example.com:8080 --key-file worker.key --manifest caption.toml",
    ),
    ("Run a workflow and print its output", "orrery workflow run mood --input @inputs.json"),
    ("Back up everything while the service runs", "orrery backup orrery.backup"),
    ("Serve every network of this machine", "orrery serve --listen 0.0.0.0 --port 9000"),
    ("Serve all hosts on one port", "orrery serve --one-port 0.0.0.0:8443"),
    ("Write the current settings to a configuration file", "orrery config init"),
    ("Show each setting and where it comes from", "orrery config show"),
    ("Change one setting", "orrery config set limits.sync_wait 90s"),
    ("Print the JSON Schema of manifests, for an editor", "orrery schema manifest"),
    ("Check a configuration before a start", "orrery --config config.toml check"),
    ("Find problems of the running service", "orrery doctor"),
    ("Send a test alert to the configured receiver", "orrery alerts test"),
    ("Watch the running service", "orrery top"),
    ("Benchmark this machine in seconds", "orrery bench --quick"),
    ("Apply a changed configuration", "orrery reload"),
    ("Create an organization", "orrery org create --name acme"),
    ("Limit what an organization may run", "orrery org limit acme --running 4 --queued 1000"),
    ("Rename an organization", "orrery org rename acme acme-labs"),
    ("Show what a deletion would delete", "orrery org delete acme"),
    ("Delete an organization with all of its data", "orrery org delete acme --yes"),
    ("Delete a key by its name", "orrery key delete laptop"),
    ("Create the link that sets up the dashboard", "orrery owner link"),
    ("Invite a person to the dashboard", "orrery member invite ada@example.com"),
    (
        "Let a person read without changing or running anything",
        "orrery member update ada@example.com --role viewer",
    ),
    (
        "Let a person in who has lost the second factor",
        "orrery member reset-second-factor ada@example.com",
    ),
    ("Remove a person from the dashboard", "orrery member remove ada@example.com"),
    ("Store a secret for HTTP steps", "orrery secret set api_key"),
    ("Show the usage of each key", "orrery usage --by key,month"),
    ("Add credit", "orrery balance top-up --amount 20"),
    ("List who changed keys", "orrery audit list --action key"),
    ("Download a chat model", "orrery model pull hf:Qwen/Qwen2.5-3B-Instruct-GGUF"),
    (
        "Download one file of a repository",
        "orrery model pull hf:ggerganov/whisper.cpp:ggml-base.bin --into /srv/models",
    ),
    ("List the recipes for models", "orrery model add"),
    ("Add a model of Ollama", "orrery model add ollama --model llama3.2 --slug llama"),
    (
        "Let the service start llama-server for a model file",
        "orrery model add llama-server --model /srv/models/qwen.gguf --slug qwen",
    ),
    ("Check a manifest", "orrery model check caption.toml"),
    ("Chat with a model", "orrery chat llama"),
    ("Ask the agent", "orrery agent 'Which models read images?'"),
    (
        "Ask a typed question about a file",
        "orrery decide --model llama --state @mail.txt --question 'urgent: Is it urgent?'",
    ),
    ("List workflows", "orrery workflow list"),
    ("Make the service match the files of a folder", "orrery workflow push flows"),
    (
        "Run a workflow on weekdays at nine",
        "orrery schedule create --workflow mood --cron '0 9 * * MON-FRI' --timezone Europe/Berlin",
    ),
    ("Pause a schedule", "orrery schedule pause nightly"),
    ("List failed executions", "orrery execution list --status error,failed"),
    ("Cancel an execution", "orrery execution cancel 0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e"),
    (
        "Try other models when a model fails",
        "orrery chain create safe --model large --entries '[{\"model\": \"small\"}]'",
    ),
    ("Upload a file and print its link", "orrery file upload photo.png"),
    (
        "Notify a URL of failures",
        "orrery endpoint create --url https://hooks.example.com/orrery --events workflow.failed",
    ),
    ("Send a test event", "orrery endpoint test pager"),
    ("List failed deliveries", "orrery webhooks list --status failed"),
    ("Show what a file would change", "orrery apply -f box.yaml --dry-run"),
    ("Check a backup by restoring it", "orrery verify orrery.backup --restore"),
    ("Restore a backup into a new folder", "orrery restore orrery.backup --into data"),
    ("Resume the work that a restore held back", "orrery resume"),
    ("Try this binary on a copy of the data", "orrery upgrade --rehearse"),
    ("Reclaim disk space of a stopped service", "orrery compact"),
    ("Copy what is readable from a damaged store", "orrery salvage --into rescued"),
    ("Replace the key that seals secrets", "orrery seal rotate"),
    ("Install the service", "orrery service install"),
    ("Complete commands in bash", "orrery completions bash"),
    ("Write the manual pages", "orrery man pages"),
];
