//! `orrery top`: live activity of the running service. The command polls the control socket once
//! per second with a timeout, keeps the last minute of activity in memory, and draws that minute.
//! The command is read-only. If the service becomes unreachable, the command retries until the
//! service responds again.

mod draw;
mod figures;
mod lanes;
mod once;
mod screen;
mod state;
mod theme;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::crossterm::event::Event;

use self::screen::Screen;
use self::state::{Act, State};
use self::theme::Theme;
use super::admin::Admin;
use super::key::understood;
use super::output::{self, Output};
use super::signals::Signals;
use orrery_config::Config;
use orrery_runtime::{self as runtime, Clock};
use orrery_wire::activity::Activity;

const PATH: &str = "/admin/activity";
/// Time limit for one response.
const PATIENCE: Duration = Duration::from_secs(5);

/// Watch the running service: running and queued work, throughput, and warnings
#[derive(Debug, clap::Args)]
pub(super) struct Top {
    /// The polling interval, from 0.1 to 60 seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = every)]
    every: Duration,
    /// Sample twice, print one table and exit
    #[arg(long)]
    once: bool,
    /// With --once: print JSON instead of a table
    #[arg(long, requires = "once")]
    json: bool,
}

/// Parses a polling interval.
fn every(text: &str) -> Result<Duration, String> {
    let seconds = text.strip_suffix('s').unwrap_or(text).parse::<f64>().ok();
    let seconds = seconds.filter(|seconds| (0.1..=60.0).contains(seconds));
    let seconds = seconds.ok_or("write a number of seconds from 0.1 to 60, such as 2")?;
    Ok(Duration::from_secs_f64(seconds))
}

pub(super) async fn run(asked: Top, config: &Config) -> anyhow::Result<()> {
    if asked.once {
        return once::run(asked.every, &Output::new(asked.json), config).await;
    }
    anyhow::ensure!(
        output::on_a_terminal(),
        "standard output is not a terminal: `orrery top --once` prints one table, \
         `orrery top --once --json` prints the figures as JSON"
    );
    // Errors other than a stopped service are reported before the command takes over the terminal.
    if let Err(error) = look(config).await
        && !Admin::is_away(&error)
    {
        return Err(error);
    }
    live(asked.every, config).await
}

/// Samples the activity of the service.
async fn look(config: &Config) -> anyhow::Result<Activity> {
    let asking = async {
        let admin = Admin::reach(config).await?;
        understood(admin.get(PATH).await?)
    };
    let late = || format!("the service does not answer within {} s", PATIENCE.as_secs());
    tokio::time::timeout(PATIENCE, asking).await.with_context(late)?
}

type Looking<'a> = Pin<Box<dyn Future<Output = anyhow::Result<Activity>> + 'a>>;

/// Redraws the screen until a key press or a signal ends the command.
async fn live(every: Duration, config: &Config) -> anyhow::Result<()> {
    let place = config.data_dir.display().to_string();
    let theme = Theme { has_colour: output::in_colour(&std::io::stdout()) };
    let mut state = State::new(place);
    let mut signals = Signals::new().context("signals cannot be caught")?;
    let opened = Screen::open()
        .context("the terminal cannot be used; `orrery top --once` needs no terminal");
    let (mut screen, mut events) = opened?;
    let clock = Clock::system();
    let begun = runtime::monotonic_now();
    let mut looks = tokio::time::interval(every);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut looking: Option<Looking<'_>> = None;
    loop {
        let time = clock.now().to_string();
        let time = time.get(11..19).unwrap_or_default();
        screen
            .terminal
            .draw(|frame| draw::draw(frame, &mut state, theme, &format!("{time} UTC")))
            .context("the terminal cannot be written to")?;
        tokio::select! {
            biased;
            () = signals.next() => return Ok(()),
            event = events.recv() => match event {
                // The key reader has ended, because the terminal was closed.
                None => return Ok(()),
                Some(Event::Key(key)) if state.press(key) == Act::Quit => return Ok(()),
                Some(_drawn_again) => {}
            },
            answer = answer_of(&mut looking) => {
                looking = None;
                let answer = answer.map_err(|error| format!("{error:#}"));
                state.take(begun.elapsed().as_secs_f64(), answer);
            }
            _ = looks.tick(), if looking.is_none() => looking = Some(Box::pin(look(config))),
        }
    }
}

/// Waits for the pending sample; never resolves if no sample is pending.
async fn answer_of(looking: &mut Option<Looking<'_>>) -> anyhow::Result<Activity> {
    match looking {
        Some(looking) => looking.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_every_accepts_seconds_within_bounds() {
        assert_eq!(every("1"), Ok(Duration::from_secs(1)));
        assert_eq!(every("0.5s"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "61", "NaN", "often", ""] {
            assert!(every(wrong).unwrap_err().contains("such as 2"), "{wrong}");
        }
    }
}
