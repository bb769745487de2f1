//! Takes over the terminal, and restores it when the command ends, even after an error, a panic or
//! a signal. After SIGKILL, the terminal is not restored, and the command `reset` repairs it.

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

/// Interval at which the key reader checks whether it should end.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of queued key events.
const EVENTS_MAX: usize = 64;

/// The terminal while this process controls it.
pub(super) struct Screen {
    /// Never dropped: on drop, ratatui reports failed writes to a closed terminal on standard
    /// error, and panics if standard error is closed too.
    pub(super) terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
    /// Tells the key reader to end.
    has_left: Arc<AtomicBool>,
}

impl Screen {
    /// Takes over the terminal. Key events are sent over the channel.
    ///
    /// # Errors
    /// Returns an error if standard output is not a terminal, or the terminal cannot be set up.
    pub(super) fn open() -> io::Result<(Self, mpsc::Receiver<Event>)> {
        restore_on_panic();
        enable_raw_mode()?;
        // From here on, dropping the screen restores the terminal.
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
        // The task ends soon after the screen is dropped.
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

/// Restores the terminal. Errors are ignored, because a closed terminal cannot be restored.
fn restore() {
    let _no_terminal = execute!(stdout(), Show, LeaveAlternateScreen);
    let _no_terminal = disable_raw_mode();
}

/// Restores the terminal before the message of a panic in any thread is printed.
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
