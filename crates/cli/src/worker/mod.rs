//! `orrery worker`: runs models on this machine for a service on another machine. The worker calls
//! the service; the service never connects to the worker.
//!
//! ```text
//! server     the routes of the service that a worker calls
//! run        one job: runs the model, reports its progress, and reports its result
//! ```
//!
//! Each model has one claim that waits for a job, and jobs run concurrently up to the model's
//! limit. If this worker cannot report a job's result, the job goes back to the queue when its
//! lease ends.

mod run;
mod server;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use url::Url;

use self::server::{Error, Server};
use super::loaded::configuration;
use super::signals::Signals;
use super::values;
use orrery_app::WorkerModels;
use orrery_config::Config;
use orrery_http::tls::{authorities, machine_name};
use orrery_runners::pull::WORKER_CHARS_MAX;
use orrery_runtime::Tasks;
use orrery_telemetry as telemetry;

/// How long a claim waits for a job.
const WAIT: Duration = Duration::from_secs(30);
/// Minimum and maximum delay before a failed claim is retried.
const DELAY_MIN: Duration = Duration::from_millis(500);
const DELAY_MAX: Duration = Duration::from_secs(30);
/// Maximum number of concurrent jobs of a model.
const CONCURRENCY_MAX: u64 = 1024;

/// Run models on this machine for a service on another machine. There, the manifests of these
/// models must have the runner pull
///
/// The worker needs no open port: it asks the service for jobs. It runs until SIGTERM; then it
/// claims no more jobs and finishes its running jobs.
#[derive(Debug, clap::Args)]
pub(super) struct Worker {
    /// The URL of the service's base host
    #[arg(long, value_name = "URL", value_parser = base_url)]
    server: Url,
    /// A file with an API key that has the scope worker
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// The manifest of a model to run. It has the same slug as the service's manifest, and any
    /// runner except pull; repeatable
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    manifest: Vec<PathBuf>,
    /// Maximum number of jobs of each model that run at once; by default, the concurrency in the
    /// model's manifest
    #[arg(
        long, value_name = "COUNT",
        value_parser = clap::value_parser!(u64).range(1..=CONCURRENCY_MAX)
    )]
    concurrency: Option<u64>,
    /// The name by which the service counts this worker; by default, the machine's name and the
    /// process ID
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How long running jobs may take to finish after SIGTERM; unfinished jobs go to other workers
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::span)]
    drain: Duration,
    /// A file with the certificates (PEM) of authorities to trust for the service's certificate, in
    /// addition to the public authorities
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

/// Parses the URL of a host, without a trailing slash.
fn base_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(|url| {
        matches!(url.scheme(), "http" | "https") && url.has_host() && url.query().is_none()
    });
    url.ok_or_else(|| "write the URL of the base host, such as https://box.lan:8080".to_owned())
}

pub(super) async fn run(asked: Worker, file: Option<&Path>) -> anyhow::Result<()> {
    // The models' processes keep their files here.
    let folder = tempfile::Builder::new().prefix("orrery-worker-").tempdir()?;
    let mut config = match file {
        Some(file) => configuration(Some(file))?,
        None => Config::defaults(),
    };
    config.data_dir = folder.path().to_path_buf();
    if let Some(manifest) = asked.manifest.first() {
        let manifest = std::path::absolute(manifest)?;
        config.models_dir = manifest.parent().unwrap_or(&manifest).to_path_buf();
    }
    telemetry::start_logs(&config.log)?;
    let name = asked.name.unwrap_or_else(|| format!("{}-{}", machine_name(), std::process::id()));
    let name: String = name.chars().take(WORKER_CHARS_MAX).collect();
    let authorities = asked.ca_file.as_deref().map(authorities).transpose()?.unwrap_or_default();
    let server = Server::new(&asked.server, &asked.key_file, &name, authorities)?;
    let tasks = Tasks::new();
    let concurrency = asked.concurrency.and_then(|count| usize::try_from(count).ok());
    let models = WorkerModels::open(&config, &asked.manifest, concurrency, &tasks);
    let models = models.map_err(|errors| anyhow::anyhow!("{}", errors.join("\n  ")))?;
    let mut signals = Signals::new()?;
    let mut claiming = JoinSet::new();
    let work = Work { server, models, jobs: Tasks::new() };
    for (slug, limit) in work.models.list() {
        tracing::info!(model = slug, concurrency = limit, worker = name, "worker started");
        claiming.spawn(work.clone().claim(slug, limit));
    }
    let failed = tokio::select! {
        () = signals.next() => None,
        ended = claiming.join_next() => ended,
    };
    claiming.shutdown().await;
    if let Some(ended) = failed {
        tasks.stop();
        return Err(ended.context("a claim was interrupted")?);
    }
    tracing::info!(
        drain = ?asked.drain,
        "finishing the running jobs and taking no others; a second signal stops the worker at once"
    );
    let is_drained = tokio::select! {
        is_drained = work.jobs.ended(asked.drain) => is_drained,
        () = signals.next() => false,
    };
    if is_drained {
        tracing::info!("stopped");
    } else {
        tracing::warn!("stopped with unfinished jobs, which go to other workers");
    }
    tasks.stop();
    Ok(())
}

/// The state that the jobs of all models share.
#[derive(Debug, Clone)]
struct Work {
    server: Server,
    models: WorkerModels,
    /// The running jobs.
    jobs: Tasks,
}

impl Work {
    /// Claims jobs of a model and runs up to `limit` of them at once. Returns only an error: the
    /// service has refused the first claim, so retries would fail as well.
    async fn claim(self, slug: String, limit: usize) -> anyhow::Error {
        let places = Arc::new(Semaphore::new(limit));
        let mut is_known = false;
        let mut delay = DELAY_MIN;
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return anyhow::anyhow!("the worker is stopping");
            };
            match self.server.claim(&slug, WAIT).await {
                Ok(None) => (is_known, delay) = (true, DELAY_MIN),
                Ok(Some(job)) => {
                    (is_known, delay) = (true, DELAY_MIN);
                    let work = self.clone();
                    let slug = slug.clone();
                    self.jobs.spawn(async move {
                        run::job(&work.server, &work.models, &slug, job).await;
                        drop(place);
                    });
                }
                Err(Error::Refused { message } | Error::Lost(message)) if !is_known => {
                    return anyhow::anyhow!("the service refuses the claim: {message}");
                }
                Err(error) => {
                    tracing::warn!(model = slug, %error, delay = ?delay, "cannot claim a job");
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(DELAY_MAX);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_takes_the_url_of_a_host() {
        for good in ["http://a:1", "https://box.lan/prefix/"] {
            assert!(base_url(good).is_ok(), "{good}");
        }
        for bad in ["box.lan:8080", "ftp://a", "http://a?b", ""] {
            assert!(base_url(bad).unwrap_err().contains("https://box.lan:8080"), "{bad}");
        }
    }
}
