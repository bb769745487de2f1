//! The terminal: taken over for the picture, and given its own state again however the process leaves: at the
//! end, after an error, a panic or a signal. SIGKILL alone is not seen; `reset` mends that.

use std::io::{self, Stdout, stdout};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use tokio::sync::mpsc;

/// How long the reader of keys waits before it looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Keys that wait to be handled.
const EVENTS_MAX: usize = 64;

/// The terminal, while it is ours.
pub(super) struct Screen {
    /// Never dropped: ratatui's drop writes to standard error what it cannot write to a terminal that has
    /// gone, and panics where that has gone too.
    pub(super) terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
    /// Ends the reader of keys.
    has_left: Arc<AtomicBool>,
}

impl Screen {
    /// Takes the terminal over; the keys that are pressed come through the channel.
    ///
    /// # Errors
    /// When it is not a terminal, or refuses.
    pub(super) fn open() -> io::Result<(Self, mpsc::Receiver<Event>)> {
        restore_on_panic();
        enable_raw_mode()?;
        // From here on, dropping it restores the terminal.
        let has_left = Arc::new(AtomicBool::new(false));
        let opened = Terminal::new(CrosstermBackend::new(stdout()));
        let screen = match opened {
            Ok(terminal) => {
                Self { terminal: ManuallyDrop::new(terminal), has_left: Arc::clone(&has_left) }
            }
            Err(error) => {
                restore();
                return Err(error);
            }
        };
        execute!(stdout(), EnterAlternateScreen, Clear(ClearType::All), Hide)?;
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        // It ends by itself soon after the screen does.
        drop(tokio::task::spawn_blocking(move || read_keys(&sender, &has_left)));
        Ok((screen, events))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.has_left.store(true, Ordering::Relaxed);
        restore();
    }
}

/// Leaves the terminal as it was. What cannot be written to it any more cannot be mended either.
fn restore() {
    let _no_terminal = execute!(stdout(), Show, LeaveAlternateScreen);
    let _no_terminal = disable_raw_mode();
}

/// A panic of any thread is shown on a terminal that is as it was.
fn restore_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        before(panic);
    }));
}

fn read_keys(events: &mpsc::Sender<Event>, has_left: &AtomicBool) {
    while !has_left.load(Ordering::Relaxed) {
        match event::poll(LOOK_EVERY) {
            Ok(false) => {}
            Ok(true) => {
                let Ok(event) = event::read() else { return };
                if events.blocking_send(event).is_err() {
                    return;
                }
            }
            Err(_no_terminal) => return,
        }
    }
}
