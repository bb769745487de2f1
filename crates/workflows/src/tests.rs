//! Workflows in a real store: names, versions, locks, concurrent changes, lists.

use serde_json::json;
use tempfile::TempDir;

use super::*;
use orrery_storage::Options;
use orrery_storage::record::{decode, encode};

const OWNER: [u8; 16] = [1; 16];
const OTHER: [u8; 16] = [9; 16];

struct OneModel {
    slug: &'static str,
    schema: Arc<orrery_schema::Schema>,
}

impl Models for OneModel {
    fn schema(&self, slug: &str) -> Option<Arc<orrery_schema::Schema>> {
        (slug == self.slug).then(|| Arc::clone(&self.schema))
    }

    fn nearest(&self, slug: &str) -> Option<String> {
        orrery_domain::spelling::nearest(slug, &[self.slug]).map(str::to_owned)
    }
}

fn open() -> (TempDir, Workflows) {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { folder: folder.path().to_path_buf(), inline_bytes: 4096 };
    let store = Store::open(&options).unwrap();
    let schema = json!({
        "type": "object", "required": ["text"], "additionalProperties": false,
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer", "maximum": 9},
            "a/b": {"type": "array", "items": {"type": "string"}},
        },
    });
    let schema = Arc::new(orrery_schema::Schema::compile(&schema).unwrap());
    let models = Arc::new(OneModel { slug: "caption", schema });
    let sealer = Sealer::open(folder.path()).unwrap();
    (folder, Workflows::new(store, sealer, Clock::system(), models))
}

fn definition(result: &str) -> Option<Value> {
    Some(json!({"steps": [{"step_id": "a", "type": "pass", "result": result}]}))
}

fn new(name: &str) -> New {
    New {
        name: name.to_owned(),
        description: "about".to_owned(),
        categories: vec!["text".to_owned()],
        tags: vec![name.to_lowercase()],
        locked: false,
        production: false,
        definition: definition("one"),
    }
}

fn put(result: &str) -> Put {
    let definition = definition(result);
    Put {
        definition,
        locked: false,
        production: false,
        allowed_to_share: None,
        name: None,
        description: None,
        replaces: None,
    }
}

async fn create(workflows: &Workflows, name: &str) -> Workflow {
    workflows.create(OWNER.into(), new_id(), new(name), Commit::new()).await.unwrap()
}

#[tokio::test]
async fn workflow_slug_is_unique_within_its_organization() {
    let (_folder, workflows) = open();
    let mut slugs = Vec::new();
    for _ in 0..5 {
        slugs.push(create(&workflows, "My Flow").await.slug);
    }
    assert_eq!(slugs, ["my-flow", "my-flow-2", "my-flow-3", "my-flow-4", "my-flow-5"]);
    let other = workflows.create(OTHER.into(), new_id(), new("My Flow"), Commit::new()).await;
    let other = other.unwrap();
    assert_eq!(other.slug, "my-flow");
    let found = workflows.find(OWNER.into(), "my-flow-2").await.unwrap();
    assert_eq!(workflows.find(OWNER.into(), &found.id.to_string()).await.unwrap(), found);
    for (reference, expected) in [
        (other.id.to_string().as_str(), None),
        ("nothing", None),
        ("", None),
        ("my-flwo-3", Some("my-flow-3")),
        ("MY-FLOW", Some("my-flow")),
    ] {
        match workflows.find(OWNER.into(), reference).await {
            Err(Error::NotFound { near }) => assert_eq!(near.as_deref(), expected, "{reference}"),
            found => panic!("{reference}: {found:?}"),
        }
    }
    let deleted = Change { status: Some(Status::Deleted), ..Change::default() };
    workflows.update(OWNER.into(), "my-flow-2", deleted).await.unwrap();
    assert!(matches!(workflows.find(OWNER.into(), "my-flow-2").await, Err(Error::NotFound { .. })));
    let id = found.id.to_string();
    assert!(matches!(workflows.find(OWNER.into(), &id).await, Err(Error::NotFound { .. })));
    assert_eq!(workflows.find_any(OWNER.into(), &id).await.unwrap().status, Status::Deleted);
    assert_eq!(create(&workflows, "My Flow").await.slug, "my-flow-2");
}

#[tokio::test]
async fn workflow_concurrent_creates_get_distinct_slugs() {
    let (_folder, workflows) = open();
    let creating = (0..8).map(|_| create(&workflows, "same"));
    let made = futures_util::future::join_all(creating).await;
    let slugs: std::collections::BTreeSet<_> = made.iter().map(|one| &one.slug).collect();
    assert_eq!(slugs.len(), 8, "{slugs:?}");
}

#[tokio::test]
async fn workflow_locked_version_rejects_changes() {
    let (_folder, workflows) = open();
    let made = create(&workflows, "a").await;
    let first = made.versions[0].revision;
    let id = made.id.to_string();
    let changed = workflows.put_version(OWNER.into(), &id, "v2", put("two")).await.unwrap();
    assert_eq!((changed.latest.as_str(), changed.versions.len()), ("v2", 2));
    let changed = workflows.put_version(OWNER.into(), &id, "v1", put("three")).await.unwrap();
    assert_eq!((changed.latest.as_str(), changed.versions.len()), ("v1", 2));
    let second = changed.version("v1").unwrap().revision;
    assert_ne!(first, second);
    // An execution that was accepted with the first revision continues to use it.
    for (revision, text) in [(first, "one"), (second, "three")] {
        assert!(workflows.definition(revision).await.unwrap().get().contains(text));
        assert!(workflows.compiled(revision).await.unwrap().plan.step("a").is_some());
    }
    let locked = Put { locked: true, ..put("four") };
    workflows.put_version(OWNER.into(), &id, "v2", locked).await.unwrap();
    let refused = workflows.put_version(OWNER.into(), &id, "v2", put("five")).await;
    assert!(matches!(refused, Err(Error::VersionLocked)));
    let lock = Change { locked: Some(true), ..Change::default() };
    workflows.update(OWNER.into(), &id, lock).await.unwrap();
    let refused = workflows.put_version(OWNER.into(), &id, "v9", put("six")).await;
    assert!(matches!(refused, Err(Error::Locked)));
    let rename = || Change { name: Some("b".to_owned()), ..Change::default() };
    let refused = workflows.update(OWNER.into(), &id, rename()).await;
    assert!(matches!(refused, Err(Error::Locked)));
    let unlock = Change { locked: Some(false), ..Change::default() };
    workflows.update(OWNER.into(), &id, unlock).await.unwrap();
    assert_eq!(workflows.update(OWNER.into(), &id, rename()).await.unwrap().name, "b");
}

#[tokio::test]
async fn workflow_concurrent_version_puts_are_all_kept() {
    let (_folder, workflows) = open();
    let id = create(&workflows, "a").await.id.to_string();
    let versions: Vec<String> = (2..8).map(|number| format!("v{number}")).collect();
    let putting =
        versions.iter().map(|version| workflows.put_version(OWNER.into(), &id, version, put("x")));
    for done in futures_util::future::join_all(putting).await {
        done.unwrap();
    }
    assert_eq!(workflows.find(OWNER.into(), &id).await.unwrap().versions.len(), 7);
}

#[tokio::test]
async fn workflow_invalid_definition_is_rejected_and_stores_nothing() {
    let (_folder, workflows) = open();
    for (definition, expect) in [
        (None, "definition is required"),
        (Some(json!({"steps": []})), "definition must include at least one step"),
        (
            Some(json!({"steps": [{"step_id": "a", "type": "model", "model": "no"}]})),
            "'no' is unknown",
        ),
        (
            Some(json!({"steps": [{"step_id": "a", "type": "model", "model": "Captoin"}]})),
            "there is no such model: did you mean caption?",
        ),
        (
            Some(
                json!({"input_schema": {"pattern": "("}, "steps": [{"step_id": "a", "type": "pass"}]}),
            ),
            "input_schema",
        ),
    ] {
        let broken = New { definition, ..new("a") };
        let refused = workflows.create(OWNER.into(), new_id(), broken, Commit::new()).await;
        let said = refused.unwrap_err().to_string();
        assert!(said.contains(expect), "{said}");
    }
    let all = Filter::newest(0, 10);
    assert_eq!(workflows.list(OWNER.into(), &all).await.unwrap(), (Vec::new(), 0));
}

/// Returns the problems of a step `m` with these additional fields, as paths and messages.
async fn refused_of_step(step: Value) -> Vec<(String, String)> {
    let (_folder, workflows) = open();
    let mut model = json!({"step_id": "m", "type": "model", "model": "caption"});
    model.as_object_mut().unwrap().extend(step.as_object().unwrap().clone());
    let items = json!({"step_id": "each", "type": "map", "items": [1], "steps": [model]});
    let first = json!({"step_id": "first", "type": "pass", "result": 1});
    let definition = Some(json!({"steps": [first, items]}));
    match workflows.try_definition(OWNER.into(), None, definition).await {
        Ok(()) => Vec::new(),
        Err(Error::Invalid { message, problems }) => {
            assert_eq!(problems.first().unwrap().message, message);
            problems.into_iter().map(|problem| (problem.path, problem.message)).collect()
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn workflow_parameters_that_never_fit_their_model_are_rejected() {
    let params = "/steps/1/steps/0/params";
    let fallback = "/steps/1/steps/0/fallback/params";
    let good = json!({"text": "hi"});
    for (step, places, said) in [
        (json!({}), vec![format!("{params}/text")], "missing required field 'text'"),
        (json!({"params": {"text": 5}}), vec![format!("{params}/text")], "is not of type"),
        (
            json!({"params": {"text": "hi", "txt": "{{first.output}}"}}),
            vec![format!("{params}/txt")],
            "unknown field 'txt'",
        ),
        (
            json!({"params": {"text": "{{first.output}}", "count": 10}}),
            vec![format!("{params}/count")],
            "is greater than the maximum",
        ),
        (
            json!({"params": {"text": "hi", "count": "{{first.output}} pieces"}}),
            vec![format!("{params}/count")],
            "is not of type",
        ),
        (
            json!({"params": {"text": "hi", "a/b": ["{{first.output}}", 1]}}),
            vec![format!("{params}/a~1b/1")],
            "is not of type",
        ),
        (
            json!({"params": {"count": "x", "text": []}}),
            vec![format!("{params}/text"), format!("{params}/count")],
            "step 'm': params do not fit the model 'caption': 'text' is wrong",
        ),
        (
            json!({"params": good, "fallback": {"model": "caption", "params": {"text": null}}}),
            vec![format!("{fallback}/text")],
            "step 'm': fallback/params do not fit the model 'caption'",
        ),
    ] {
        let refused = refused_of_step(step.clone()).await;
        let mut found: Vec<&str> = refused.iter().map(|(place, _)| place.as_str()).collect();
        found.sort_unstable();
        let mut places: Vec<&str> = places.iter().map(String::as_str).collect();
        places.sort_unstable();
        assert_eq!(found, places, "{step}");
        assert!(refused.iter().any(|(_, message)| message.contains(said)), "{refused:?}");
    }
    for step in [
        json!({"params": good}),
        json!({"params": {"text": "{{first.output}}", "count": "{{first.output}}"}}),
        json!({"params": {"text": "a {{first.output}}", "a/b": "{{first.output}}"}}),
        json!({"params": {"text": "hi", "a/b": ["{{first.output}}", "b"]}}),
        json!({"params": good, "fallback": {"model": "caption"}}),
        json!({"params": good, "fallback": {"model": "gone", "enabled": false, "params": {}}}),
    ] {
        assert_eq!(refused_of_step(step.clone()).await, [], "{step}");
    }
}

#[tokio::test]
async fn workflow_inputs_that_never_fit_their_workflow_are_rejected() {
    let (_folder, workflows) = open();
    let schema = json!({
        "type": "object", "required": ["n"], "additionalProperties": false,
        "properties": {"n": {"type": "integer", "maximum": 9}, "note": {"type": "string"}},
    });
    let child = json!({"input_schema": schema, "steps": [
        {"step_id": "a", "type": "pass", "result": "{{inputs.n}}"}]});
    let child = New { definition: Some(child), ..new("Child") };
    workflows.create(OWNER.into(), new_id(), child, Commit::new()).await.unwrap();
    create(&workflows, "Any").await;
    let tried = async |step: Value| {
        let first = json!({"step_id": "first", "type": "pass", "result": 1});
        let mut run = json!({"step_id": "run", "type": "workflow"});
        run.as_object_mut().unwrap().extend(step.as_object().unwrap().clone());
        let definition = json!({"steps": [first, run]});
        match workflows.try_definition(OWNER.into(), None, Some(definition)).await {
            Ok(()) => None,
            Err(Error::Invalid { mut problems, .. }) => {
                let problem = problems.remove(0);
                Some((problem.path, problem.message))
            }
            Err(error) => panic!("{error}"),
        }
    };
    for (inputs, place, said) in [
        (json!({}), "/n", "missing required field 'n'"),
        (json!({"n": 10}), "/n", "is greater than the maximum"),
        (json!({"n": "{{first.output}} pieces"}), "/n", "is not of type"),
        (json!({"n": "{{first.output}}", "m": 1}), "/m", "unknown field 'm'"),
    ] {
        let (path, message) = tried(json!({"workflow": "child", "inputs": inputs})).await.unwrap();
        assert_eq!(path, format!("/steps/1/inputs{place}"), "{message}");
        let start = "step 'run': inputs do not fit the workflow 'child': ";
        assert!(message.starts_with(start) && message.contains(said), "{message}");
    }
    let (_, message) = tried(json!({"workflow": "chlid"})).await.unwrap();
    assert_eq!(message, "step 'run': workflow 'chlid' does not exist: did you mean child?");
    let (_, message) = tried(json!({"workflow": "elsewhere"})).await.unwrap();
    assert_eq!(message, "step 'run': workflow 'elsewhere' does not exist");
    let (path, _) = tried(json!({"workflow": "child", "version_id": "v1"})).await.unwrap();
    assert_eq!(path, "/steps/1/inputs/n");
    for good in [
        json!({"workflow": "child", "inputs": {"n": 9, "note": "a {{first.output}}"}}),
        json!({"workflow": "child", "inputs": {"n": "{{first.output}}"}}),
        json!({"workflow": "any"}),
    ] {
        assert_eq!(tried(good.clone()).await, None, "{good}");
    }
}

#[tokio::test]
async fn workflow_stays_loadable_after_its_model_changed() {
    let (folder, workflows) = open();
    let good = json!({"steps": [
        {"step_id": "a", "type": "model", "model": "caption", "params": {"text": "hi"}}]});
    let made = New { definition: Some(good.clone()), ..new("a") };
    let made = workflows.create(OWNER.into(), new_id(), made, Commit::new()).await.unwrap();
    let changed = json!({"required": ["prompt"]});
    let changed = Arc::new(orrery_schema::Schema::compile(&changed).unwrap());
    let models = Arc::new(OneModel { slug: "caption", schema: changed });
    let sealer = Sealer::open(folder.path()).unwrap();
    let workflows = Workflows::new(workflows.store.clone(), sealer, Clock::system(), models);
    workflows.compiled(made.versions[0].revision).await.unwrap();
    let again = Put { definition: Some(good), ..put("x") };
    let refused = workflows.put_version(OWNER.into(), "a", "v2", again).await.unwrap_err();
    assert!(refused.to_string().contains("missing required field 'prompt'"), "{refused}");
}

#[tokio::test]
async fn workflow_list_is_filtered_and_sorted() {
    let (_folder, workflows) = open();
    for name in ["b", "C", "a"] {
        create(&workflows, name).await;
    }
    let mut trigger = Commit::new();
    let b = workflows.find(OWNER.into(), "b").await.unwrap();
    count_trigger(&mut trigger, b.id, "v1");
    workflows.store.commit(trigger).await.unwrap();
    assert_eq!(workflows.triggers(&b).await.unwrap(), Triggers { total: 1, versions: vec![1] });
    let filter = Filter {
        category: Some("text".to_owned()),
        tags: Vec::new(),
        keyword: None,
        status: None,
        sort_key: SortKey::CreatedAt,
        ascending: false,
        offset: 0,
        limit: 10,
    };
    let names = async |filter: &Filter| {
        let (found, total) = workflows.list(OWNER.into(), filter).await.unwrap();
        (found.into_iter().map(|one| one.name).collect::<Vec<_>>().join(""), total)
    };
    let with = |sort_key, ascending| Filter { sort_key, ascending, ..filter.clone() };
    for (filter, expect) in [
        (filter.clone(), ("aCb", 3)),
        (with(SortKey::CreatedAt, true), ("bCa", 3)),
        (with(SortKey::Name, true), ("abC", 3)),
        (with(SortKey::UpdatedAt, false), ("aCb", 3)),
        (Filter { limit: 1, ..with(SortKey::TriggerCount, false) }, ("b", 3)),
        (Filter { offset: 1, limit: 1, ..filter.clone() }, ("C", 3)),
        (Filter { tags: vec!["c".to_owned()], ..filter.clone() }, ("C", 1)),
        (Filter { keyword: Some("ABOUT".to_owned()), ..filter.clone() }, ("aCb", 3)),
        (Filter { keyword: Some("zzz".to_owned()), ..filter.clone() }, ("", 0)),
        (Filter { category: Some("image".to_owned()), ..filter.clone() }, ("", 0)),
        (Filter { status: Some(Status::Deleted), ..filter.clone() }, ("", 0)),
    ] {
        assert_eq!(names(&filter).await, (expect.0.to_owned(), expect.1), "{filter:?}");
    }
}

#[tokio::test]
async fn workflow_changes_are_in_the_audit_log() {
    use orrery_records::audit;
    let (_folder, workflows) = open();
    let log = audit::Audit::new(workflows.store.clone(), Clock::system());
    let workflows = workflows.by(audit::Actor::operator("here"));
    let made = create(&workflows, "Flow").await;
    let reference = made.id.to_string();
    let update = async |change| {
        workflows.update(OWNER.into(), &reference, change).await.unwrap();
    };
    let put_version = async |version, put| {
        workflows.put_version(OWNER.into(), &reference, version, put).await.unwrap();
    };
    put_version("v2", put("two")).await;
    put_version("v2", Put { allowed_to_share: Some(true), ..put("three") }).await;
    let named = Change { name: Some("Stream".to_owned()), tags: Some(vec![]), ..Change::default() };
    update(named).await;
    update(Change { name: Some("Stream".to_owned()), ..Change::default() }).await;
    for status in [Status::Archived, Status::Active, Status::Deleted] {
        update(Change { status: Some(status), ..Change::default() }).await;
    }
    let entries = log.list(&audit::Filter::default(), 100).await.unwrap();
    let shown = entries.iter().rev().map(|entry| {
        assert_eq!((entry.actor.as_str(), entry.from.as_str()), ("operator", "here"));
        assert_eq!(entry.organization, Some(OWNER.into()));
        (entry.action.as_str(), entry.subject.strip_prefix(&reference).unwrap())
    });
    let expected = [
        ("workflow.create", " flow"),
        ("workflow.version", " flow, version v2: created"),
        ("workflow.version", " flow, version v2: changed, shared"),
        ("workflow.rename", " flow, from 'Flow' to 'Stream'"),
        ("workflow.change", " flow: tags"),
        ("workflow.archive", " flow"),
        ("workflow.activate", " flow"),
        ("workflow.delete", " flow"),
    ];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
}

/// Golden bytes of release 0.1.0: a changed encoding needs a new record version and a migration.
#[test]
fn workflow_matches_golden_bytes() {
    let golden = concat!(
        "\u{1}{\"id\":\"07070707-0707-0707-0707-070707070707\",",
        "\"organization\":\"01010101-0101-0101-0101-010101010101\",",
        "\"slug\":\"a\",\"name\":\"A\",\"description\":\"d\",\"categories\":[\"text\"],",
        "\"tags\":[\"t\"],\"locked\":false,\"production\":true,\"status\":\"active\",",
        "\"latest\":\"v1\",\"versions\":[{\"id\":\"v1\",",
        "\"revision\":\"02020202-0202-0202-0202-020202020202\",\"locked\":true,",
        "\"production\":false,\"allowed_to_share\":true,\"status\":\"archived\",",
        "\"created_at\":1,\"updated_at\":2}],\"created_at\":1,\"updated_at\":2}"
    );
    let read: Workflow = decode(golden.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(encode(&read).unwrap()).unwrap(), golden);
    let golden = concat!(
        "\u{1}{\"workflow\":\"07070707-0707-0707-0707-070707070707\",",
        "\"definition\":{\"inline\":{\"steps\":[]}}}"
    );
    let read: rows::Definition = decode(golden.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(encode(&read).unwrap()).unwrap(), golden);
}
