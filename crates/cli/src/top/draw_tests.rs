//! Tests of the screens of a busy service at several sizes, with and without problems.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use orrery_domain::histogram::{Bucket, Histogram};
use orrery_wire::activity::{
    Activity, Deliveries, Disk, Executions, Host, Lane, Machine, Process, Store,
};

const PLAIN: Theme = Theme { has_colour: false };

fn times(count: u64, from: f64) -> Histogram {
    let slow = Bucket { from: from * 8.0, to: from * 10.0, count: count / 50 };
    Histogram::of([Bucket { from, to: from * 1.25, count }, slow])
}

/// Returns lanes with this number of completed executions.
fn lanes(done: u64) -> Vec<Lane> {
    let lane = |kind: &str, name: &str, running, cap, queued, share, from| Lane {
        kind: kind.to_owned(),
        name: name.to_owned(),
        running,
        queued,
        cap,
        failing: None,
        server: None,
        failed: 0,
        times: times(done / share, from),
    };
    let mut broken = lane("model", "caption-large", 0, 1, 3, 1000, 0.4);
    broken.failing = Some("it ends at once".to_owned());
    let mut started = lane("model", "qwen", 2, 8, 0, 6, 0.8);
    started.server = Some("ready".to_owned());
    vec![
        lane("workflow", "greet-by-name", 12, 2048, 1234, 4, 0.02),
        lane("model", "text-template", 4, 8, 17, 2, 0.003),
        lane("model", "acme/a-model-with-a-long-name-that-is-cut", 1, 1, 0, 9, 1.5),
        broken,
        started,
        lane("agent", "sessions", 1, 3, 0, 100, 4.0),
    ]
}

/// Returns the activity of a service after this many seconds. The counters of the activity grow
/// over time.
fn activity(second: u32) -> Activity {
    let done = u64::from(second) * 100;
    let host = |host: &str, share| Host {
        host: host.to_owned(),
        answers: done * 8 / share,
        refused: done / 50 / share,
        failed: 0,
        times: times(done * 8 / share, 0.0008),
    };
    Activity {
        version: "0.1.0".to_owned(),
        pid: 4711,
        uptime: f64::from(273_600 + second),
        warnings: Vec::new(),
        executions: Executions {
            running: 17,
            queued: 1251,
            retrying: 0,
            ended: done,
            failed: done / 200,
        },
        lanes: lanes(done),
        lanes_total: 5,
        hosts: vec![host("base", 1), host("workflows", 4)],
        requests_in_flight: 9,
        deliveries: Deliveries {
            in_flight: 4,
            queued: 12,
            retrying: 3,
            is_capped: false,
            open_circuits: 1,
            lag: 2.0,
            delivered: done / 5,
            failed: 0,
            retries: 7,
        },
        store: Store {
            bytes: 1_300_000_000,
            log_bytes: 64 << 20,
            commits: done * 3,
            flushes: done / 4,
            waiting: 2,
            times: times(done / 4, 0.002),
        },
        disk: Disk { free: 31 << 30, total: 80 << 30, reserve: 4 << 30, is_low: false },
        process: Process {
            resident_bytes: 312 << 20,
            open_files: 214,
            open_files_max: 65_536,
            threads: 12,
            cpu: f64::from(second) * 1.4,
        },
        machine: Machine {
            cores: 2,
            load: 1.25,
            memory_bytes: 4 << 30,
            memory_available_bytes: 3 << 30,
        },
    }
}

fn busy() -> State {
    let mut state = State::new("/var/lib/orrery".to_owned());
    let mut done = 0;
    for second in 0..40_u32 {
        done += 1 + second % 7;
        state.take(f64::from(second), Ok(activity(done)));
    }
    state
}

fn picture(state: &mut State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, PLAIN, NOON)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn picture_of_80x24() {
    insta::assert_snapshot!(picture(&mut busy(), 80, 24));
}

#[test]
fn picture_of_160x50() {
    let shown = picture(&mut busy(), 160, 50);
    for part in ["Webhooks ──", "circuits open 1", "TREND", "HOST", "workflows", "load 1.25"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
}

#[test]
fn picture_of_50x14() {
    insta::assert_snapshot!(picture(&mut busy(), 50, 14));
}

#[test]
fn picture_of_unreachable_service() {
    let mut state = busy();
    state.take(45.0, Err("no service answers in /var/lib/orrery".to_owned()));
    let shown = picture(&mut state, 100, 30);
    assert!(shown.contains("● away"), "{shown}");
    let said = "no service answers in /var/lib/orrery. Retrying; last answer 6 s ago.";
    assert!(shown.contains(said), "{shown}");
    assert!(shown.contains("text-template"), "the last known state is shown: {shown}");
    let mut never = State::new("/var/lib/orrery".to_owned());
    assert!(picture(&mut never, 80, 24).contains("Querying the service."));
    never.take(1.0, Err("no service answers in /var/lib/orrery".to_owned()));
    assert!(picture(&mut never, 80, 24).contains("Waiting for the service."));
}

#[test]
fn picture_shows_first_warnings_and_counts_the_rest() {
    let mut state = busy();
    let mut warned = activity(200);
    warned.warnings = (1..=5).map(|number| format!("disk {number}: nearly full")).collect();
    warned.warnings[0] = "a\u{1b}[2Jb".to_owned();
    state.take(41.0, Ok(warned));
    let shown = picture(&mut state, 80, 24);
    for said in ["● 5 warnings", "▲ a\u{fffd}[2Jb", "▲ disk 2: nearly full", "▲ and 3 more"]
    {
        assert!(shown.contains(said), "{said} is not in {shown}");
    }
    assert!(!shown.contains("disk 3"), "{shown}");
}

#[test]
fn picture_shows_help_and_pause() {
    let mut state = busy();
    let press = |state: &mut State, letter| {
        state.press(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE))
    };
    press(&mut state, 'p');
    press(&mut state, 'p');
    assert!(!picture(&mut state, 80, 24).contains("paused"));
    press(&mut state, 'p');
    assert!(picture(&mut state, 80, 24).contains("paused"));
    press(&mut state, '?');
    let shown = picture(&mut state, 80, 24);
    assert!(shown.contains("scroll the lanes") && shown.contains("╭ orrery top ─"), "{shown}");
}

#[test]
fn picture_scrolls_through_the_lanes() {
    let mut state = busy();
    let mut many = activity(300);
    let lane = many.lanes[1].clone();
    many.lanes =
        (0..100).map(|number| Lane { name: format!("lane-{number:02}"), ..lane.clone() }).collect();
    many.lanes_total = 240;
    state.take(41.0, Ok(many));
    let shown = picture(&mut state, 80, 24);
    assert!(shown.contains("lane-00") && shown.contains("of 240 lanes"), "{shown}");
    state.press(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
    let shown = picture(&mut state, 80, 24);
    assert!(shown.contains("lane-99") && !shown.contains("lane-00"), "{shown}");
}

#[test]
fn picture_renders_at_any_size_with_any_figures() {
    let mut state = busy();
    let mut extreme = activity(u32::MAX / 100);
    extreme.machine = Machine::default();
    extreme.disk = Disk { free: u64::MAX, ..Disk::default() };
    extreme.lanes[0].running = usize::MAX / 4;
    extreme.store.bytes = u64::MAX;
    state.take(41.0, Ok(extreme));
    for (width, height) in
        [(1, 1), (35, 8), (36, 8), (40, 10), (66, 18), (80, 15), (300, 9), (110, 34), (400, 120)]
    {
        picture(&mut state, width, height);
    }
    for has_colour in [true, false] {
        let mut terminal = Terminal::new(TestBackend::new(120, 40)).unwrap();
        let theme = Theme { has_colour };
        terminal.draw(|frame| draw(frame, &mut state, theme, NOON)).unwrap();
        let coloured =
            terminal.backend().buffer().content.iter().any(|cell| cell.fg != Color::Reset);
        assert_eq!(coloured, has_colour);
    }
}
