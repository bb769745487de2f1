//! Tests of the effects of keys and samples on the display state.

use super::*;
use orrery_wire::activity::Lane;

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

fn lane(name: &str, queued: usize) -> Lane {
    Lane { kind: "model".to_owned(), name: name.to_owned(), queued, ..Lane::default() }
}

fn with_lanes(count: usize) -> State {
    let mut state = State::new("/data".to_owned());
    let lanes = (0..count).map(|number| lane(&format!("{number:03}"), number)).collect();
    state.take(1.0, Ok(Activity { lanes, ..Activity::default() }));
    state.set_room(10);
    state
}

fn names(state: &State) -> Vec<&str> {
    state.lanes().iter().skip(state.scrolled).take(2).map(|lane| lane.name.as_str()).collect()
}

#[test]
fn keys_quit() {
    for code in [KeyCode::Char('q'), KeyCode::Esc] {
        assert_eq!(with_lanes(0).press(key(code)), Act::Quit);
    }
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(with_lanes(0).press(interrupt), Act::Quit);
    assert_eq!(with_lanes(0).press(key(KeyCode::Char('c'))), Act::Nothing);
    let mut released = key(KeyCode::Char('q'));
    released.kind = KeyEventKind::Release;
    assert_eq!(with_lanes(0).press(released), Act::Nothing);
}

#[test]
fn keys_scroll_within_the_lanes() {
    let mut state = with_lanes(25);
    assert_eq!(names(&state), ["024", "023"]);
    for (code, first) in [
        (KeyCode::Up, "024"),
        (KeyCode::Down, "023"),
        (KeyCode::Char('j'), "022"),
        (KeyCode::Char('k'), "023"),
        (KeyCode::PageDown, "013"),
        (KeyCode::End, "009"),
        (KeyCode::Down, "009"),
        (KeyCode::PageUp, "019"),
        (KeyCode::Home, "024"),
    ] {
        assert_eq!(state.press(key(code)), Act::Nothing);
        assert_eq!(names(&state)[0], first, "{code:?}");
    }
    state.press(key(KeyCode::End));
    // A larger terminal shows more lanes.
    state.set_room(20);
    assert_eq!(names(&state)[0], "019");
    // When lanes disappear from the list, the visible range does not become empty.
    state.take(2.0, Ok(Activity { lanes: vec![lane("a", 0)], ..Activity::default() }));
    assert_eq!(names(&state), ["a"]);
}

#[test]
fn keys_sort_and_pause() {
    let mut state = with_lanes(3);
    state.press(key(KeyCode::Char('s')));
    state.press(key(KeyCode::Char('s')));
    state.press(key(KeyCode::Char('s')));
    assert_eq!((state.order, names(&state)), (Order::Name, vec!["000", "001"]));
    state.press(key(KeyCode::Char('s')));
    assert_eq!((state.order, names(&state)), (Order::Busy, vec!["002", "001"]));
    state.press(key(KeyCode::Char('p')));
    state.take(2.0, Ok(Activity { lanes: vec![lane("new", 9)], ..Activity::default() }));
    assert_eq!(names(&state), ["002", "001"], "a pause freezes the display");
    state.press(key(KeyCode::Char('p')));
    assert_eq!(names(&state), ["new"]);
}

#[test]
fn any_key_closes_the_help() {
    let mut state = with_lanes(1);
    state.press(key(KeyCode::Char('?')));
    assert!(state.shows_help);
    assert_eq!(state.press(key(KeyCode::Esc)), Act::Nothing);
    assert!(!state.shows_help);
    state.press(key(KeyCode::Char('h')));
    state.press(key(KeyCode::Char('s')));
    assert_eq!((state.shows_help, state.order), (false, Order::Busy));
}

#[test]
fn unreachable_service_keeps_last_figures_until_it_returns() {
    let mut state = with_lanes(2);
    state.take(6.0, Err("no service answers".to_owned()));
    let away = Contact::Away { reason: "no service answers".to_owned(), seconds: 5 };
    assert_eq!(state.contact, away);
    assert_eq!(state.lanes().len(), 2, "the last known state is shown");
    state.take(7.0, Ok(Activity::default()));
    assert_eq!(state.contact, Contact::Answers);
}
