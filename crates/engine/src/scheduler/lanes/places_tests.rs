//! Tests that an organization gets its guaranteed permits, regardless of how many permits other
//! organizations hold.

use super::OWN_PLACES;
use super::caps_tests::{Fixture, LANES, Running, name, organization};

/// One organization holds all permits, in lanes that other organizations use too. Each of the other
/// organizations still has its guaranteed permits.
#[test]
fn organization_has_places_of_its_own_however_many_others_hold() {
    const ACTIVE: usize = 64;
    let mut fixture = Fixture::new(100, ACTIVE, &[]);
    for _ in 0..100 {
        fixture.submit(0, 1, false);
        fixture.submit(1, 1, false);
    }
    fixture.settle();
    assert_eq!(fixture.running.len(), ACTIVE, "one alone has as many as there are");
    for owner in [2, 3] {
        for lane in 0..LANES {
            for _ in 0..10 {
                fixture.submit(lane, owner, false);
            }
        }
        fixture.settle();
        assert_eq!(fixture.counted(organization(owner)), OWN_PLACES);
    }
    assert_eq!(fixture.counted(organization(1)), ACTIVE);
    // The remaining executions of these organizations continue in every lane.
    for _ in 0..30 {
        for owner in [2, 3] {
            let own = |run: &Running| run.row.2 == organization(owner);
            if let Some(at) = fixture.running.iter().position(own) {
                fixture.finish(at);
                fixture.settle();
            }
        }
        fixture.assert_own_places(100, OWN_PLACES);
        fixture.invariants();
    }
    let ended = fixture.disk.iter().filter(|row| row.2 != organization(1)).count();
    assert_eq!(ended, 0, "all of theirs have run");
}

/// Executions that wait for other executions use memory. So the number of running and waiting
/// executions of an organization is limited to twice its guaranteed number of permits.
#[test]
fn organization_has_few_that_wait_for_others_when_all_places_are_taken() {
    let mut fixture = Fixture::new(1000, 64, &[]);
    for _ in 0..200 {
        fixture.submit(0, 1, false);
    }
    fixture.settle();
    for _ in 0..100 {
        fixture.submit(1, 2, false);
    }
    for _ in 0..100 {
        fixture.settle();
        let own = |run: &Running| run.row.2 == organization(2) && !run.yields;
        if let Some(at) = fixture.running.iter().position(own) {
            fixture.yields(at, true);
        }
    }
    let placed = fixture.running.iter().filter(|run| run.row.2 == organization(2)).count();
    assert_eq!(placed, OWN_PLACES * 2);
    fixture.invariants();
}

/// The lane's own executions and its waiting steps take turns, even when other organizations hold
/// all permits.
#[test]
fn organization_with_places_of_its_own_waits_behind_no_guests() {
    let mut fixture = Fixture::new(4, 4, &[]);
    for _ in 0..4 {
        fixture.submit(0, 1, false);
    }
    fixture.settle();
    for _ in 0..4 {
        assert!(fixture.lanes.try_acquire(&name(1), None));
    }
    for waiter in 0..8 {
        fixture.lanes.enqueue_step(&name(1), Some(organization(1)), waiter, false);
    }
    fixture.submit(1, 2, false);
    for _ in 0..2 {
        fixture.lanes.release_step(&name(1), None);
        fixture.settle();
    }
    assert_eq!(fixture.counted(organization(2)), 1);
}
