//! A parent with a thousand children, cancelled halfway and killed around that moment: no child is
//! orphaned or duplicated, and the links in both directions are correct.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::leftovers::{check_none, detail, ended, history, trigger, workflow};
use crate::support::http::Client;
use crate::support::random::Random;
use crate::support::service::{Service, Setup};
use crate::support::{count_from, eventually};

/// Maximum concurrency of the map.
const CONCURRENCY_MAX: usize = 1000;

/// A service with a parent whose map runs one child per item.
struct Family {
    setup: Setup,
    key: String,
    children: usize,
    waits: bool,
    /// The execution whose steps run the children, and the children's workflow.
    parent: String,
    child: String,
}

impl Family {
    fn start(setup: &Setup, waits: bool, children: usize) -> (Self, Service) {
        let service = setup.start();
        let key = setup.create_key();
        let mut client = setup.client(&key);
        // Every other child completes immediately; the others never end by themselves.
        let condition =
            json!({"expression": "{{inputs.ends}}", "operator": "equals", "value": true});
        let steps = json!([{"step_id": "which", "type": "choice", "condition": condition,
            "condition_met_branch": {"steps": [
                {"step_id": "end", "type": "pass", "result": "{{inputs.n}}"}]},
            "default_branch": {"steps": [
                {"step_id": "forever", "type": "wait", "event": {"name": "never"}}]}}]);
        let child = workflow(&mut client, "child", &steps);
        let inputs = json!({"n": "{{item.n}}", "ends": "{{item.ends}}"});
        let run = json!({"step_id": "run", "type": "workflow", "workflow": child,
            "inputs": inputs, "wait": waits});
        let each = json!({"step_id": "each", "type": "map", "items": "{{inputs.items}}",
            "max_concurrency": (children / 2).min(CONCURRENCY_MAX), "steps": [run]});
        let outer = workflow(&mut client, "parent", &json!([each]));
        let item = |n: usize| json!({"n": n, "ends": !waits || n.is_multiple_of(2)});
        let items: Vec<Value> = (0..children).map(item).collect();
        let parent = trigger(&mut client, &outer, &json!({ "items": items }));
        (Self { setup: setup.clone(), key, children, waits, parent, child }, service)
    }

    fn client(&self) -> Client {
        self.setup.client(&self.key)
    }

    /// Waits until this many children exist.
    fn wait_for(&self, count: usize) {
        let mut client = self.client();
        let path = format!("/v1/workflows/{}/executions?limit=1", self.child);
        eventually("more children", || {
            let found = client.get(&path).unwrap().json()["total_count"].as_u64().unwrap();
            (usize::try_from(found).unwrap() >= count).then_some(())
        });
    }

    /// Kills and restarts the service.
    fn kill(&self, service: Service) -> Service {
        service.kill();
        self.setup.start()
    }

    /// Kills the service at a random moment around the cancellation of the parent, and checks that
    /// the cancellation takes effect afterwards. Also returns whether the parent may have ended
    /// before a cancellation, which then cancels all children.
    fn cancel_around_a_kill(&self, service: Service, random: &mut Random) -> (Service, bool) {
        let path = format!("/v1/workflows/executions/{}/cancel", self.parent);
        let pause = Duration::from_micros(random.within(0..30_000));
        let mut client = self.client();
        let asked = std::thread::scope(|scope| {
            let asking = scope.spawn(|| client.post(&path, &[], "{}").is_ok());
            std::thread::sleep(pause);
            service.kill();
            asking.join().unwrap()
        });
        let service = self.setup.start();
        let mut client = self.client();
        if !asked {
            let again = client.post(&path, &[], "{}").unwrap();
            assert!([200, 409].contains(&again.status()), "{}", again.text());
        }
        let end = ended(&mut client, &self.parent)["status"].take();
        // A parent that does not wait for its children may already have started all of them.
        assert!(end == "cancelled" || (end == "completed" && !self.waits), "{end}");
        (service, end == "completed" || !asked)
    }

    /// Checks that each child exists once and is linked in both directions; returns the number of
    /// children per status.
    fn check(&self) -> HashMap<String, usize> {
        let mut client = self.client();
        let of_workflow = format!("type=workflow&workflow_id={}", self.child);
        let of_parent = format!("type=workflow&workflow_execution_id={}", self.parent);
        let all = eventually("each child ends", || {
            let rows = history(&mut client, &of_workflow);
            rows.iter().all(|row| row["completed_at"].is_string()).then_some(rows)
        });
        let ids = |rows: &[Value]| -> HashSet<String> {
            rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
        };
        // Check the links from the parent to its children.
        assert_eq!(ids(&all), ids(&history(&mut client, &of_parent)));
        let mut numbers = HashSet::new();
        let mut ends = HashMap::new();
        for row in &all {
            // Check the link from the child to its parent.
            let child = detail(&mut client, row["id"].as_str().unwrap());
            assert_eq!(child["parent_execution_id"], self.parent.as_str(), "{child}");
            assert_eq!(
                (&child["parent_step_id"], &child["source"]),
                (&json!("run"), &json!("workflow"))
            );
            let number = child["inputs"]["n"].as_u64().unwrap();
            assert!(numbers.insert(number), "a second child for item {number}: {child}");
            let status = child["status"].as_str().unwrap();
            if status == "completed" {
                assert_eq!(child["output"], number, "{child}");
            }
            *ends.entry(status.to_owned()).or_default() += 1;
        }
        assert!(numbers.len() <= self.children, "{} children", numbers.len());
        ends
    }
}

fn count(name: &str) -> usize {
    usize::try_from(count_from(name, 1000)).unwrap()
}

#[test]
fn children_of_a_cancelled_parent_end_with_it() {
    let children = count("ORRERY_CRASH_CHILDREN");
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::seeded();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let (family, service) = Family::start(&setup, true, children);
    family.wait_for(usize::try_from(random.within(1..(children / 2) as u64)).unwrap());
    let service = family.kill(service);
    family.wait_for(children / 2);
    let (service, _) = family.cancel_around_a_kill(service, &mut random);
    // Kill once more while the children are being cancelled.
    std::thread::sleep(Duration::from_millis(random.within(0..100)));
    let service = family.kill(service);
    let ends = family.check();
    assert!(ends.keys().all(|end| ["completed", "cancelled"].contains(&&**end)), "{ends:?}");
    assert!(ends["cancelled"] > 0 && ends.values().sum::<usize>() >= children / 2, "{ends:?}");
    check_none(&setup, service);
    println!("{children} children, cancelled half-way: {ends:?}");
}

#[test]
fn children_that_nobody_waits_for_outlive_their_parent() {
    let children = count("ORRERY_CRASH_CHILDREN") / 2;
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::seeded();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let (family, service) = Family::start(&setup, false, children);
    family.wait_for(usize::try_from(random.within(1..(children / 4) as u64)).unwrap());
    let service = family.kill(service);
    family.wait_for(children / 4);
    let (service, may_cancel_children) = family.cancel_around_a_kill(service, &mut random);
    let ends = family.check();
    let expected: &[&str] =
        if may_cancel_children { &["cancelled", "completed"] } else { &["completed"] };
    assert!(ends.keys().all(|end| expected.contains(&&**end)), "{ends:?}");
    check_none(&setup, service);
    println!("{children} children that nobody waits for: {ends:?}");
}
