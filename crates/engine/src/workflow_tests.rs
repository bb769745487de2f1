//! Tests workflows on the real executor and a real store, with scripted models: each step type has
//! the expected outcome, even if the process dies after an arbitrary commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::simulation_tests::{
    ORGANIZATION, PATIENCE, Process, Script, check_books, each_life, executions, rows, runtime,
};
use crate::{Options, Submission, rows};
use orrery_domain::definition::Plan;
use orrery_domain::delivery::Webhook;
use orrery_domain::execution::{Execution, Source, Status, Work as Doing, WorkflowRun};
use orrery_domain::ids::{KeyId, RevisionId, WorkflowId};
use orrery_domain::step;
use orrery_runtime::Clock;
use orrery_storage::faults::Point;
use orrery_storage::{Commit, Store, Table};

/// A workflow, its inputs, and the expected output or error name.
pub(crate) struct Case {
    name: &'static str,
    definition: Value,
    inputs: Value,
    expect: Result<Value, &'static str>,
}

pub(crate) fn model(id: &str, slug: &str, n: Value) -> Value {
    json!({"step_id": id, "type": "model", "model": slug, "params": {"n": n}})
}

pub(crate) fn case(
    name: &'static str,
    steps: Value,
    inputs: Value,
    expect: Result<Value, &'static str>,
) -> Case {
    Case { name, definition: json!({"steps": steps}), inputs, expect }
}

fn retried(id: &str, slug: &str, retry: Value) -> Value {
    let mut step = model(id, slug, json!(1));
    step["retry"] = retry;
    step
}

fn cases() -> Vec<Case> {
    let mut cases = nests();
    cases.extend(failures());
    cases.extend(events());
    cases.extend(children(cases.len()));
    cases
}

fn child(id: &str, workflow: usize, inputs: Value) -> Value {
    let workflow = workflow.to_string();
    json!({"step_id": id, "type": "workflow", "workflow": workflow, "inputs": inputs})
}

/// Workflow steps that run other workflows: the first three of these cases. The case numbers begin
/// at `first`.
fn children(first: usize) -> Vec<Case> {
    let [gives, fails, hangs] = [first, first + 1, first + 2];
    let gives_itself = json!([model("a", "same", json!("{{inputs.n}}")),
        {"step_id": "b", "type": "pass", "result": {"was": "{{a.output}}"}}]);
    let given = || json!({"n": "{{inputs.n}}"});
    let single = json!([child("c", gives, given()),
        {"step_id": "d", "type": "pass", "result": ["{{c.output.was}}", "{{c.status}}"]}]);
    let map = json!([{"step_id": "m", "type": "map", "items": [1, 2, 3], "max_concurrency": 2,
        "steps": [child("c", gives, json!({"n": "{{item}}"}))], "output": "{{c.output.was}}"}]);
    let both = json!([{"step_id": "p", "type": "parallel", "branches": [
        {"steps": [child("one", gives, json!({"n": 1}))]},
        {"steps": [{"step_id": "x", "type": "choice",
            "condition": {"expression": "{{inputs.n}}", "operator": "equals", "value": 7},
            "condition_met_branch": {"steps": [child("two", gives, json!({"n": 2}))]}}]}]}]);
    let mut retried = child("c", fails, json!({}));
    retried["retry"] = json!({"max_attempts": 2, "initial_delay_seconds": 0.01,
        "retry_on": ["provider_error"]});
    let mut short = child("c", hangs, json!({}));
    short["timeout_seconds"] = json!(0.15);
    let mut apart = child("c", gives, json!({"n": 5}));
    apart["wait"] = json!(false);
    let mut borne = child("c", fails, json!({}));
    borne["continue_on_error"] = json!(true);
    let borne = json!([borne, {"step_id": "d", "type": "pass", "result": "{{c.status}}"}]);
    let beside = json!([{"step_id": "p", "type": "parallel", "branches": [
        {"steps": [child("long", hangs, json!({}))]},
        {"steps": [{"step_id": "w", "type": "wait", "seconds": 0.03},
            model("bad", "fails", json!(1))]}]}]);
    let inputs = || json!({"n": 7});
    let is = |it: &str| json!({"was": it});
    vec![
        case("child", gives_itself, json!({"n": "own"}), Ok(is("own"))),
        case(
            "child that fails",
            json!([model("bad", "fails", json!(1))]),
            json!({}),
            Err("StepFailed"),
        ),
        case(
            "child that waits",
            json!([{"step_id": "w", "type": "wait", "event":
            {"name": "e", "timeout_seconds": 2, "default": 1}}]),
            json!({}),
            Ok(json!(1)),
        ),
        case("parent", single, inputs(), Ok(json!([7, "completed"]))),
        case("parent of several", map, inputs(), Ok(json!([1, 2, 3]))),
        case("parent in branches", both, inputs(), Ok(json!([{"was": 1}, {"was": 2}]))),
        case("parent of a failure", json!([retried]), inputs(), Err("StepFailed")),
        case("parent without patience", json!([short]), inputs(), Err("StepTimeout")),
        case("parent that does not wait", json!([apart]), inputs(), Ok(json!("CHILD"))),
        case("parent that bears a failure", borne, inputs(), Ok(json!("failed"))),
        case("parent that fails beside its child", beside, inputs(), Err("StepFailed")),
        case("parent of nothing", json!([child("c", 250, json!({}))]), inputs(), Err("StepFailed")),
    ]
}

/// Steps with dependencies, and steps with nested steps.
fn nests() -> Vec<Case> {
    let diamond = json!([
        model("a", "same", json!("{{inputs.n}}")),
        model("b", "same", json!("b{{a.output}}")),
        model("c", "slow", json!("c{{a.output}}")),
        model("d", "same", json!("{{b.output}}+{{c.output.echo}}")),
    ]);
    let map = json!([{
        "step_id": "m", "type": "map", "items": "{{inputs.list}}", "item_name": "it",
        "max_concurrency": 2,
        "steps": [model("x", "same", json!("{{it}}")), model("y", "works", json!("{{x.output}}"))],
        "output": {"was": "{{it}}", "is": "{{y.output.echo}}"},
    }]);
    let nested = json!([
        {"step_id": "p", "type": "parallel", "branches": [
            {"steps": [model("p1", "same", json!(1)), model("p2", "same", json!("{{p1.output}}"))]},
            {"steps": [{"step_id": "c", "type": "choice",
                "condition": {"expression": "{{inputs.n}}", "operator": "greater_than", "value": 5},
                "condition_met_branch": {"steps": [model("big", "same", json!("big"))]},
                "default_branch": {"steps": [model("small", "same", json!("small"))]}}]},
        ]},
        {"step_id": "w", "type": "wait", "seconds": 0.03},
        {"step_id": "end", "type": "pass",
         "result": {"p": "{{p.output}}", "taken": "{{small.status}}", "id": "{{execution.id}}"}},
    ]);
    let suspended = json!([
        model("a", "same", json!(1)),
        {"step_id": "w", "type": "wait", "seconds": 0.2},
        model("b", "same", json!(["{{a.output}}", "{{w.status}}"])),
    ]);
    let no_items = json!([{"step_id": "m", "type": "map", "items": "{{inputs.list}}",
        "steps": [model("x", "fails", json!(1))]}]);
    let items = json!([{"was": 3, "is": 3}, {"was": 1, "is": 1}, {"was": 2, "is": 2}]);
    let taken = json!({"p": [1, "small"], "taken": "completed", "id": "ID"});
    vec![
        case("diamond", diamond, json!({"n": "1"}), Ok(json!("b1+c1"))),
        case("map", map, json!({"list": [3, 1, 2]}), Ok(items)),
        case("nested", nested, json!({"n": 3}), Ok(taken)),
        case("parked", suspended, json!({}), Ok(json!([1, "completed"]))),
        case("no items", no_items, json!({"list": []}), Ok(json!([]))),
    ]
}

/// Steps that wait for events that never arrive.
fn events() -> Vec<Case> {
    let event = |event: Value| {
        json!([model("a", "same", json!(1)), {"step_id": "w", "type": "wait", "event": event},
            model("b", "same", json!(["{{w.output}}", "{{w.event.source}}"]))])
    };
    let short = event(json!({"name": "e", "timeout_seconds": 0.03, "default": 7}));
    let aside = event(json!({"name": "e", "timeout_seconds": 0.25, "default": {"no": true}}));
    let late = event(json!({"name": "e", "timeout_seconds": 0.03}));
    let nothing = || json!({});
    vec![
        case("event that does not come", short, nothing(), Ok(json!([7, "default"]))),
        case("event while aside", aside, nothing(), Ok(json!([{"no": true}, "default"]))),
        case("event without default", late, nothing(), Err("StepTimeout")),
    ]
}

/// A value nested `levels` deep.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!([inner]))
}

fn deep(result: &str) -> Value {
    json!({"step_id": "a", "type": "pass", "result": result})
}

/// Steps that fail, are retried or fall back, and steps whose failure is tolerated.
fn failures() -> Vec<Case> {
    let nothing = || json!({});
    let quick = json!({"max_attempts": 3, "initial_delay_seconds": 0.01});
    let at_once = json!({"max_attempts": 2, "initial_delay_seconds": 0});
    let mut tolerated = model("a", "fails", json!(1));
    tolerated["continue_on_error"] = json!(true);
    let tolerated = json!([tolerated, {"step_id": "b", "type": "pass", "result": "{{a.status}}"}]);
    let mut replaced = model("a", "fails", json!(1));
    replaced["fallback"] = json!({"model": "same", "params": {"n": "{{inputs.n}}"}});
    let within = json!([
        {"step_id": "p", "type": "parallel", "continue_on_error": true, "branches": [
            {"steps": [model("bad", "fails", json!(1))]},
            {"steps": [model("long", "hangs", json!(1))]},
        ]},
        model("after", "same", json!("{{p.status}} {{bad.status}} {{long.status}}")),
    ]);
    let limit = json!([{"step_id": "p", "type": "parallel", "timeout_seconds": 0.03, "branches": [
        {"steps": [{"step_id": "w", "type": "wait", "seconds": 60}]}]}]);
    let mut suspended = limit.clone();
    suspended[0]["timeout_seconds"] = json!(0.25);
    let item = json!([{"step_id": "m", "type": "map", "items": "{{inputs.list}}",
        "steps": [model("x", "fails", json!("{{item}}"))]}]);
    let one = |slug: &str, n: &str| json!([model("a", slug, json!(n))]);
    let flaky = json!({"echo": 1, "by": "flaky"});
    vec![
        case("retried", json!([retried("a", "flaky", quick)]), nothing(), Ok(flaky)),
        case("given up", json!([retried("a", "fails", at_once)]), nothing(), Err("StepFailed")),
        case("fallback", json!([replaced]), json!({"n": 7}), Ok(json!(7))),
        case("tolerated", tolerated, nothing(), Ok(json!("failed"))),
        case("contained", within, nothing(), Ok(json!("failed failed cancelled"))),
        case("time-out of a step", one("hangs", "1"), nothing(), Err("StepTimeout")),
        case("time-out of a container", limit, nothing(), Err("StepTimeout")),
        case("time-out of one that is put aside", suspended, nothing(), Err("StepTimeout")),
        case(
            "deep",
            json!([deep("{{inputs.deep}}")]),
            json!({"deep": nested(100)}),
            Err("ReferenceError"),
        ),
        case("nothing", one("same", "{{inputs.no}}"), nothing(), Err("ReferenceError")),
        case("panic", one("panics", "1"), nothing(), Err("InternalError")),
        case("a model that has gone", one("removed", "1"), nothing(), Err("StepFailed")),
        case("an item fails", item, json!({"list": [1, 2, 3]}), Err("StepFailed")),
    ]
}

fn revision(number: usize) -> RevisionId {
    RevisionId::from([u8::try_from(number).unwrap(); 16])
}

pub(crate) fn script(cases: &[Case]) -> Script {
    let plan = |case: &Case| Arc::new(Plan::compile(Some(&case.definition), &|_| true).unwrap());
    let plans = cases.iter().enumerate().map(|(number, case)| (revision(number), plan(case)));
    Script { plans: plans.collect(), ..Script::default() }
}

pub(crate) fn submission(number: usize, case: &Case) -> Submission {
    let url = "http://receiver.example/".to_owned();
    Submission {
        id: orrery_runtime::new_id(),
        organization: ORGANIZATION.into(),
        key: KeyId::from([2; 16]),
        source: Source::Api,
        work: Doing::Workflow(run(number)),
        input: to_raw_value(&case.inputs).unwrap(),
        webhook: Some(Webhook::unsigned(url)),
        origin: None,
    }
}

fn run(number: usize) -> WorkflowRun {
    WorkflowRun {
        workflow: WorkflowId::from([u8::try_from(number).unwrap(); 16]),
        version: "v1".to_owned(),
        revision: revision(number),
        owner: None,
        bulk: None,
        source_ip: None,
        redriven_from: None,
        schedule: None,
        parent: None,
        root: None,
        ran_ms: 0,
        aside_until: None,
        awaits_event: false,
        paused: None,
    }
}

fn options() -> Options {
    Options { suspend_after: Duration::from_millis(100), ..Options::default() }
}

/// The outcome of each workflow by case number, with the results of its steps.
type Outcomes = BTreeMap<usize, (Result<Value, String>, BTreeMap<String, Value>)>;

pub(crate) async fn all_end(process: &Process) {
    let mut known = 0;
    loop {
        let all = executions(&process.store).await;
        if all.len() == known {
            return;
        }
        // The executions that have ended since the last check may have started other executions.
        known = all.len();
        for execution in all {
            let ended = process.engine.wait(execution.organization, execution.id, PATIENCE).await;
            assert!(ended.as_ref().unwrap().status.is_final(), "{ended:?}");
        }
    }
}

/// Waits until a table is empty; timer and lane rows are deleted soon after the last execution
/// ends.
pub(crate) async fn none_is_left(process: &Process, table: Table) {
    let cleared = async {
        while !rows(&process.store, table).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let cleared = tokio::time::timeout(PATIENCE, cleared).await;
    cleared.unwrap_or_else(|_| panic!("a row is left: {table:?}"));
}

async fn outcomes(process: &Process) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let all = executions(&process.store).await;
    let is_child = |one: &&Execution| one.workflow().is_some_and(|run| run.parent.is_some());
    let children: Vec<String> = all.iter().filter(is_child).map(|one| one.id.to_string()).collect();
    for execution in all.iter().filter(|one| !is_child(one)) {
        let Some(run) = execution.workflow() else { continue };
        let number =
            usize::from(run.revision.to_string().parse::<uuid::Uuid>().unwrap().as_bytes()[0]);
        let detail = process.engine.detail(execution.organization, execution.id).await.unwrap();
        let id = execution.id.to_string();
        let mut text = json!(detail.view).to_string().replace(&id, "ID");
        for child in &children {
            text = text.replace(child, "CHILD");
        }
        let mut detail: Value = serde_json::from_str(&text).unwrap();
        let outcome = if execution.status == Status::Success {
            Ok(detail["output"].take())
        } else {
            Err(detail["error"].as_str().unwrap_or_default().to_owned())
        };
        let steps = detail["step_outputs"].as_object().unwrap().iter().map(|(id, step)| {
            let attempts = step["attempts"].as_array().unwrap().iter();
            let attempts: Vec<_> = attempts
                .map(|attempt| json!([attempt["number"], attempt["model"], attempt["status"]]))
                .collect();
            let record =
                json!([step["status"], step["output"], step["input"], step["error"], attempts]);
            (id.clone(), record)
        });
        let steps = steps.collect();
        assert!(outcomes.insert(number, (outcome, steps)).is_none(), "{number} twice");
    }
    outcomes
}

/// Returns the steps that had ended on disk, as prefixes of their attempt keys.
async fn ended_steps(store: &Store, cases: &[Case]) -> BTreeSet<String> {
    let script = script(cases);
    let mut ended = BTreeSet::new();
    for execution in executions(store).await {
        let Some(run) = execution.workflow() else { continue };
        let plan = &script.plans[&run.revision];
        let page = orrery_storage::Page {
            prefix: rows::steps(execution.id),
            after: None,
            before: None,
            limit: 1000,
        };
        for (key, value) in store.page(page).await.unwrap() {
            let instance = rows::parse_step(&key).unwrap();
            let stored: step::Step = orrery_storage::record::decode(&value).unwrap();
            if stored.status.is_final() {
                let id = &plan.at(instance.step).unwrap().id;
                let items: String = instance.items.iter().map(|item| format!(".{item}")).collect();
                ended.insert(format!("{}:{id}{items}:", execution.id));
            }
        }
    }
    ended
}

async fn live_and_die(folder: &TempDir, cases: &[Case], commits: i64) -> (BTreeSet<String>, i64) {
    let process = Process::start_with(folder, commits, script(cases), options());
    let living = async {
        process.engine.recover().await.unwrap();
        for (number, case) in cases.iter().enumerate() {
            let submissions = vec![submission(number, case)];
            process.engine.submit(submissions, Commit::new()).await.unwrap();
        }
        all_end(&process).await;
    };
    tokio::select! {
        () = living => {}
        () = process.store.crashed() => {}
    }
    process.engine.inner.tasks.stop();
    process.store.clone().close().await;
    let commits = i64::try_from(process.store.stats().commits).unwrap();
    (ended_steps(&process.store, cases).await, commits)
}

async fn live_on(folder: &TempDir, cases: &[Case], ended: &BTreeSet<String>) -> Outcomes {
    let process = Process::start_with(folder, i64::MAX, script(cases), options());
    process.engine.recover().await.unwrap();
    all_end(&process).await;
    for call in process.script.calls.lock().unwrap().iter() {
        let (step, _attempt) = call.rsplit_once(':').unwrap();
        assert!(!ended.contains(&format!("{step}:")), "{call} ran again");
    }
    check_books(&process.store).await;
    none_is_left(&process, Table::Timer).await;
    check_lists(&process.store).await;
    check_children(&process.store, cases).await;
    let outcomes = outcomes(&process).await;
    process.engine.inner.tasks.stop();
    outcomes
}

/// Asserts that each execution is in the lists of its workflow exactly once.
async fn check_lists(store: &Store) {
    let all = executions(store).await;
    for execution in &all {
        let Some(run) = execution.workflow() else { continue };
        let standing = rows::Standing::from(execution.status);
        let standings = rows::standings(execution.organization, run.workflow);
        let ended = store.list(&rows::ended(&standings, standing), 0, 100).await.unwrap();
        let is_it = |row: &&Vec<u8>| **row == rows::id_value(execution.id);
        assert_eq!(ended.rows.iter().filter(is_it).count(), 1);
        let list = rows::of_workflow(execution.organization, run.workflow);
        let list = store.list(&list, 0, 100).await.unwrap();
        assert_eq!(list.rows.iter().filter(is_it).count(), 1);
        let is_of = |one: &&Execution| one.workflow().is_some_and(|of| of.workflow == run.workflow);
        assert_eq!(list.rows.len(), all.iter().filter(is_of).count());
    }
}

/// Asserts that each attempt at a workflow step has one child, which ends before its parent unless
/// it is detached.
async fn check_children(store: &Store, cases: &[Case]) {
    let script = script(cases);
    let all = executions(store).await;
    for parent in &all {
        let Some(run) = parent.workflow() else { continue };
        let plan = &script.plans[&run.revision];
        let mut attempts = 0;
        let page = orrery_storage::Page {
            prefix: rows::steps(parent.id),
            after: None,
            before: None,
            limit: 1000,
        };
        for (key, value) in store.page(page).await.unwrap() {
            let instance = rows::parse_step(&key).unwrap();
            let step: step::Step = orrery_storage::record::decode(&value).unwrap();
            let kind = &plan.at(instance.step).unwrap().kind;
            if matches!(kind, orrery_domain::definition::Kind::Workflow(_)) {
                attempts += step.attempts.len();
                attempts -= usize::from(step.child.is_none() && !step.attempts.is_empty());
            }
        }
        let of = |one: &&Execution| {
            let above = one.workflow().and_then(|run| run.parent.as_ref());
            above.is_some_and(|above| above.execution == parent.id)
        };
        let children: Vec<_> = all.iter().filter(of).collect();
        assert_eq!(children.len(), attempts, "{parent:?}: {children:#?}");
        assert!(children.iter().all(|child| child.source == Source::Workflow));
    }
}

#[test]
fn workflow_each_step_type_yields_expected_outcome() {
    let cases = cases();
    let folder = tempfile::tempdir().unwrap();
    let (ended, _) = runtime().block_on(live_and_die(&folder, &cases, i64::MAX));
    let outcomes = runtime().block_on(live_on(&folder, &cases, &ended));
    assert_eq!(outcomes.len(), cases.len());
    for (number, case) in cases.iter().enumerate() {
        let (outcome, steps) = &outcomes[&number];
        let expect = case.expect.clone().map_err(str::to_owned);
        assert_eq!(*outcome, expect, "{}: {steps:#?}", case.name);
    }
    let (_, steps) = &outcomes[&5];
    assert_eq!(
        steps["a"][4],
        json!([[1, "flaky", "error"], [2, "flaky", "error"], [3, "flaky", "success"]])
    );
}

#[test]
fn workflow_outcomes_survive_crash_after_any_commit() {
    let cases = cases();
    let run = |commits: i64| {
        let folder = tempfile::tempdir().unwrap();
        // Each lifetime has a new runtime; dropping it ends everything the dead process was doing.
        let (ended, commits) = runtime().block_on(live_and_die(&folder, &cases, commits));
        (runtime().block_on(live_on(&folder, &cases, &ended)), commits)
    };
    let (undisturbed, commits) = run(i64::MAX);
    assert!(commits >= 40, "{commits}");
    each_life(commits, |after| {
        let (outcomes, _) = run(after);
        for (number, outcome) in outcomes {
            let expect = &undisturbed[&number];
            assert_eq!(&outcome, expect, "{} died after {after} commits", cases[number].name);
        }
    });
}

/// The running time of a workflow is limited, regardless of the timeouts of its models.
#[test]
fn workflow_exceeding_its_timeout_fails() {
    let definition = json!({"steps": [model("a", "endless", json!(1))]});
    let case = Case { name: "endless", definition, inputs: json!({}), expect: Err("") };
    let cases = [case];
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let limits = Options { workflow_timeout: Duration::from_millis(50), ..options() };
        let process = Process::start_with(&folder, i64::MAX, script(&cases), limits);
        process.engine.recover().await.unwrap();
        let submissions = vec![submission(0, &cases[0])];
        process.engine.submit(submissions, Commit::new()).await.unwrap();
        all_end(&process).await;
        let outcomes = outcomes(&process).await;
        let (outcome, steps) = &outcomes[&0];
        assert_eq!(outcome.as_ref().unwrap_err(), "ExecutionTimeout");
        assert_eq!(steps["a"][0], "cancelled");
        process.engine.inner.tasks.stop();
    });
}

/// The timer may still be set for the state before the last commit. If the timer fires too early,
/// the time limit must not start again.
#[test]
fn workflow_timeout_is_not_extended_when_a_step_ends() {
    let hangs =
        json!([model("a", "slow", json!(1)), model("b", "endless", json!("{{a.output.echo}}"))]);
    let ends_later = json!([{"step_id": "w", "type": "wait", "seconds": 3.5}]);
    let cases = [
        case("hangs behind a step", hangs, json!({}), Err("ExecutionTimeout")),
        case("ends behind the limit", ends_later, json!({}), Err("")),
    ];
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let workflow_timeout = Duration::from_secs(2);
        let limits = Options { workflow_timeout, suspend_after: PATIENCE, ..options() };
        let process = Process::start_with(&folder, i64::MAX, script(&cases), limits);
        // The time that commits take does not count as running time.
        process.store.faults().at_points(|point| {
            if point == Point::Sync {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        process.engine.recover().await.unwrap();
        let submissions = cases.iter().enumerate().map(|(number, one)| submission(number, one));
        let submissions = submissions.collect();
        let submitted = process.engine.submit(submissions, Commit::new()).await.unwrap();
        let mut ended_at = Vec::new();
        for one in submitted {
            let ended = process.engine.wait(one.organization, one.id, PATIENCE).await.unwrap();
            ended_at.push(ended.completed_at.unwrap());
        }
        let outcomes = outcomes(&process).await;
        assert_eq!(outcomes[&0].0, Err("ExecutionTimeout".to_owned()));
        assert!(ended_at[0] < ended_at[1], "{ended_at:?}: at about twice its limit");
        process.engine.inner.tasks.stop();
    });
}

/// A timer without a waiting execution is deleted.
#[test]
fn timer_without_execution_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = Process::start_with(&folder, i64::MAX, Script::default(), options());
        let key = rows::timer(Clock::system().now(), [9; 16].into());
        let mut commit = Commit::new();
        commit.put_bytes(key.clone(), rows::timer_value(ORGANIZATION.into()));
        process.store.commit(commit).await.unwrap();
        process.engine.recover().await.unwrap();
        let gone = async {
            while process.store.get(&key).await.unwrap().is_some() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.unwrap();
        process.engine.inner.tasks.stop();
    });
}
