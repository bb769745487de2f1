//! `orrery serve`: logs on, service on, and on a terminal a word of welcome.
//!
//! A first key and a link to set up the dashboard are made only where a person reads standard output;
//! elsewhere they would end in a log.

use super::first_run::{self, Welcome};
use super::output;
use crate::app::FirstStart;
use crate::config::{Config, TlsMode};
use crate::telemetry;

/// Run the service
#[derive(Debug, Default, clap::Args)]
pub(super) struct Serve {
    /// Start although folders of payloads or files are missing, and let this start's sweep take away
    /// any number of files that nothing refers to
    #[arg(long)]
    accept_loss: bool,
}

pub(super) async fn run(asked: Serve, mut config: Config) -> anyhow::Result<()> {
    config.accept_loss = asked.accept_loss;
    telemetry::start_logs(&config.log)?;
    if !output::on_a_terminal() {
        return super::service::serve(config, false, |_nothing| {
            tracing::info!(
                "ready; `orrery key create --name NAME` makes a key, `orrery owner link` the link \
                 that sets up the dashboard"
            );
        })
        .await;
    }
    let greeted = config.clone();
    super::service::serve(config, true, move |first| {
        // Nothing is lost with a greeting that cannot be written: `orrery key create` makes keys.
        drop(output::raw(greeting(&greeted, &first).as_bytes()));
    })
    .await
}

/// The greeting on a terminal, with what a first start makes.
fn greeting(config: &Config, first: &FirstStart) -> String {
    let hosts = config.hosts.named().map(|(name, host)| (name, host.public_url.as_str()));
    let self_made = !matches!(config.tls.mode, TlsMode::Files { .. })
        && config.hosts.base.public_url.starts_with("https:");
    let authority = config.data_dir.join("tls").join("ca.pem");
    first_run::render(&Welcome {
        version: env!("CARGO_PKG_VERSION"),
        hosts: &hosts,
        data_dir: &config.data_dir,
        key: first.key.as_deref(),
        setup_link: first.setup_link.as_deref(),
        authority: self_made.then_some(authority.as_path()),
        in_colour: output::in_colour(&std::io::stdout()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greeting_passes_cacert_only_for_self_signed_tls() {
        let mut config = Config::defaults();
        let first = FirstStart { key: Some("smk_X".to_owned()), setup_link: None };
        assert!(!greeting(&config, &first).contains("--cacert"));
        config.hosts.base.public_url = "https://box.lan:8443".to_owned();
        let text = greeting(&config, &first);
        assert!(
            text.contains("--cacert './orrery-data/tls/ca.pem' https://box.lan:8443"),
            "{text}"
        );
        config.tls.mode = TlsMode::Files { certificate: "c".into(), private_key: "k".into() };
        assert!(!greeting(&config, &first).contains("--cacert"));
    }
}
