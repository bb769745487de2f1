//! Workflows: creation, versions, locks, lists, categories, and every error with its text.

use hyper::Method;
use orrery_api::{Role, words_beside};
use serde_json::{Value, json};

use crate::support::Service;

fn pass(result: &str) -> Value {
    json!({"steps": [{"step_id": "a", "type": "pass", "result": result}]})
}

fn new(name: &str) -> Value {
    json!({"name": name, "description": "what it does", "definition": pass("one")})
}

#[tokio::test]
async fn workflow_is_created_and_read() {
    let service = Service::start().await;
    let mut body = new("My Flow");
    body["categories"] = json!(["text", "image"]);
    body["tags"] = json!(["a", "b", "a"]);
    let made = service.flows(Method::POST, "/workflows").json(&body).send().await.expect(201);
    let id = made["workflow_id"].as_str().unwrap();
    let expected = json!({
        "workflow_id": id, "slug": "my-flow", "name": "My Flow", "description": "what it does",
        "categories": ["text", "image"], "tags": ["a", "b"], "locked": false, "production": false,
        "latest_version_id": "v1", "status": "active", "trigger_count": 0,
        "created_at": made["created_at"], "updated_at": made["created_at"],
        "versions": [{
            "version_id": "v1", "slug": "my-flow", "locked": false, "production": false,
            "allowed_to_share": false, "trigger_count": 0, "status": "active",
        }],
    });
    assert_eq!(made, expected);
    for reference in [id, "my-flow"] {
        let path = format!("/workflows/{reference}");
        let read = service.flows(Method::GET, &path).send().await.expect(200);
        assert_eq!(read["versions"][0]["created_at"], made["created_at"]);
        assert_eq!((&read["workflow_id"], &read["slug"]), (&made["workflow_id"], &made["slug"]));
        let mirrored = service.get(&format!("/v1{path}")).await.expect(200);
        assert_eq!(mirrored, read);
    }
    let again = service.post("/v1/workflows/create", &new("My Flow")).send().await.expect(201);
    assert_eq!(again["slug"], "my-flow-2");
}

#[tokio::test]
async fn workflow_refusals_have_specified_texts() {
    let service = Service::start().await;
    let without = |field: &str| {
        let mut body = new("a");
        body.as_object_mut().unwrap().remove(field);
        body
    };
    let with = |field: &str, value: Value| {
        let mut body = new("a");
        body[field] = value;
        body
    };
    let model = json!({"steps": [{"step_id": "a", "type": "model", "model": "nope"}]});
    let later = json!({"steps": [
        {"step_id": "a", "type": "pass", "result": "{{b.output}}"}, {"step_id": "b", "type": "pass"}]});
    let unknown = json!({"steps": [{"step_id": "a", "type": "pass", "reslt": 1}]});
    for (body, expect) in [
        (json!({}), "name is required"),
        (with("name", json!(" ")), "name is required"),
        (without("description"), "description is required"),
        (without("definition"), "definition is required"),
        (with("definition", json!({"steps": []})), "definition must include at least one step"),
        (with("definition", json!({})), "definition must include at least one step"),
        (with("name", json!(7)), "name must be a string"),
        (with("name", json!("a\u{0}b")), "name must not contain control characters"),
        (with("name", json!("two\nlines")), "name must not contain control characters"),
        (with("name", json!("\u{1b}[31mred")), "name must not contain control characters"),
        (with("locked", json!("yes")), "locked must be true or false"),
        (with("tags", json!(["a", "b", "c", "d"])), "tags must have at most 3 items"),
        (with("categories", json!(["nope"])), "unknown category 'nope'"),
        (with("definition", model), "step 'a': model 'nope' is unknown"),
        (
            with("definition", later),
            "step 'a': {{b.output}} in result refers to a step that comes later",
        ),
        (with("definition", unknown), "step 'a'"),
        (json!([]), "the request body must be a JSON object"),
    ] {
        let refused =
            service.flows(Method::POST, "/workflows").json(&body).send().await.expect(400);
        let said = refused["error"].as_str().unwrap();
        assert!(said.starts_with(expect), "{said:?} and not {expect:?}");
    }
    let listed = service.flows(Method::GET, "/workflows").send().await.expect(200);
    assert_eq!(listed, json!({"workflows": [], "offset": 0, "total_count": 0}));
    for path in ["/workflows/nope", "/workflows/0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f"] {
        let missed = service.flows(Method::GET, path).send().await.expect(404);
        assert_eq!(missed["error"], "workflow not found");
    }
}

#[tokio::test]
async fn workflow_version_is_put_and_locked() {
    let service = Service::start().await;
    let id = service.workflow_of(pass("one")).await;
    let put = |version: &str, body: Value| {
        service.flows(Method::PUT, &format!("/workflows/{id}/versions/{version}")).json(&body)
    };
    let body = json!({"version_id": "v2", "definition": pass("two"), "allowed_to_share": true});
    let made = put("v2", body).send().await.expect(200);
    assert_eq!(made["definition"], pass("two"));
    assert_eq!((&made["version_id"], &made["allowed_to_share"]), (&json!("v2"), &json!(true)));
    let read = service.flows(Method::GET, &format!("/workflows/{id}")).send().await.expect(200);
    assert_eq!(read["latest_version_id"], "v2");
    assert_eq!(read["versions"].as_array().unwrap().len(), 2);
    for (version, body, expect) in [
        ("v2", json!({"definition": pass("x")}), "version_id is required"),
        ("v2", json!({"version_id": "v3", "definition": pass("x")}), "version_id must be"),
        ("v2", json!({"version_id": "v2"}), "definition is required"),
        (
            "a%20b",
            json!({"version_id": "a b", "definition": pass("x")}),
            "version_id must have 1 to 64",
        ),
    ] {
        let refused = put(version, body).send().await.expect(400);
        let said = refused["error"].as_str().unwrap();
        assert!(said.starts_with(expect), "{said}");
    }
    let lock = json!({"version_id": "v2", "definition": pass("two"), "locked": true});
    put("v2", lock.clone()).send().await.expect(200);
    for body in [lock, json!({})] {
        let refused = put("v2", body).send().await.expect(403);
        assert_eq!(refused["error"], "version is locked");
    }
    let update = |body: Value| service.flows(Method::PUT, &format!("/workflows/{id}")).json(&body);
    update(json!({"locked": true})).send().await.expect(200);
    for body in [json!({"name": "b"}), json!({"locked": false, "name": "b"})] {
        let refused = update(body).send().await.expect(403);
        assert_eq!(refused["error"], "Workflow is locked and cannot be modified");
    }
    let unlocked = update(json!({"locked": false})).send().await.expect(200);
    assert_eq!(unlocked["locked"], false);
    let renamed = update(json!({"name": "b", "tags": ["x"], "production": true})).send().await;
    let renamed = renamed.expect(200);
    assert_eq!((&renamed["name"], &renamed["tags"]), (&json!("b"), &json!(["x"])));
}

#[tokio::test]
async fn workflow_deleted_returns_404_but_keeps_executions() {
    let service = Service::start().await;
    let id = service.workflow_of(pass("one")).await;
    let execution = service.trigger(&id, json!({})).await;
    service.completed(&execution).await;
    let deleted = service.flows(Method::DELETE, &format!("/workflows/{id}")).send().await;
    assert_eq!((deleted.status, deleted.text.as_str()), (204, ""));
    for (method, path) in [
        (Method::GET, format!("/workflows/{id}")),
        (Method::DELETE, format!("/workflows/{id}")),
        (Method::POST, format!("/{id}/trigger")),
        (Method::POST, format!("/{id}/bulk-trigger")),
    ] {
        let missed = service.flows(method, &path).json(&json!({})).send().await.expect(404);
        assert_eq!(missed["error"], "workflow not found");
    }
    let path = format!("/workflows/{id}/executions");
    let listed = service.flows(Method::GET, &path).send().await.expect(200);
    assert_eq!((&listed["total_count"], &listed["offset"]), (&json!(1), &json!(0)));
    assert_eq!(listed["executions"][0]["execution_id"], execution.as_str());
    assert_eq!(service.execution(&execution).await["output"], "one");
    for (query, total) in [("", 0), ("?status=deleted", 1), ("?status=active", 0)] {
        let listed = service.flows(Method::GET, &format!("/workflows{query}")).send().await;
        assert_eq!(listed.expect(200)["total_count"], total, "{query}");
    }
}

#[tokio::test]
async fn workflow_list_is_filtered_and_categories_are_served() {
    let service = Service::start().await;
    for name in ["b", "c", "a"] {
        service.flows(Method::POST, "/workflows").json(&new(name)).send().await.expect(201);
    }
    let names = async |query: &str| {
        let listed = service.flows(Method::GET, &format!("/workflows{query}")).send().await;
        let listed = listed.expect(200);
        let names = listed["workflows"].as_array().unwrap().iter();
        names.map(|workflow| workflow["name"].as_str().unwrap()).collect::<Vec<_>>().join("")
    };
    for (query, expect) in [
        ("", "acb"),
        ("?sort_key=name&sort_direction=asc", "abc"),
        ("?limit=1&offset=1", "c"),
        ("?keyword=C", "c"),
        ("?category=text", ""),
    ] {
        assert_eq!(names(query).await, expect, "{query}");
    }
    for (query, expect) in [
        ("?limit=0", "limit must be a whole number from 1 to 100"),
        ("?sort_key=x", "sort_key must be one of created_at, updated_at, name, trigger_count"),
        ("?sort_direction=up", "sort_direction must be one of desc, asc"),
        ("?status=gone", "status must be one of active, archived, deleted"),
    ] {
        let refused = service.flows(Method::GET, &format!("/workflows{query}")).send().await;
        let said = refused.expect(400)["error"].as_str().unwrap().to_owned();
        let sorted = |text: &str| {
            let mut words: Vec<_> = text.split([' ', ',']).map(str::to_owned).collect();
            words.sort();
            words
        };
        assert_eq!(sorted(&said), sorted(expect), "{said}");
    }
    let listed = service.flows(Method::GET, "/categories").send().await.expect(200);
    let slugs: Vec<_> =
        listed["categories"].as_array().unwrap().iter().map(|c| &c["slug"]).collect();
    assert_eq!(json!(slugs), json!(["general", "image", "video", "audio", "text", "automation"]));
    assert_eq!(listed["categories"][0]["is_default"], true);
    assert_eq!(service.get("/v1/categories").await.expect(200), listed);
}

/// Existing clients pass the `offset` of the previous page until they receive a short page.
#[tokio::test]
async fn workflow_list_returns_offset_of_next_page() {
    let service = Service::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        service.flows(Method::POST, "/workflows").json(&new(name)).send().await.expect(201);
    }
    for path in ["/workflows", "/api/v1/workflows"] {
        let mut names = Vec::new();
        let mut offset = json!(0);
        for _page in 0..4 {
            let query = format!("?limit=2&sort_key=name&sort_direction=asc&offset={offset}");
            let page = match path {
                "/workflows" => service.get(&format!("/v1/workflows{query}")).await.expect(200),
                _ => service.flows(Method::GET, &format!("/workflows{query}")).send().await.json(),
            };
            let found = page["workflows"].as_array().unwrap();
            names.extend(found.iter().map(|one| one["name"].as_str().unwrap().to_owned()));
            assert_eq!((&page["offset"], &page["total_count"]), (&json!(names.len()), &json!(5)));
            offset = page["offset"].clone();
            if found.len() < 2 {
                break;
            }
        }
        assert_eq!(names.join(""), "abcde");
    }
}

#[tokio::test]
async fn workflow_list_accepts_any_number_of_tags() {
    let service = Service::start().await;
    for (name, tags) in
        [("a", json!(["x"])), ("b", json!(["y", "z"])), ("c", json!(["w"])), ("d", json!([]))]
    {
        let mut body = new(name);
        body["tags"] = tags;
        service.flows(Method::POST, "/workflows").json(&body).send().await.expect(201);
    }
    for (query, expect) in [
        ("tag=x", "a"),
        ("tag=x&tag=y", "ab"),
        ("tag=x&tag=y&tag=z&tag=w", "abc"),
        ("tag=x,y", ""),
        ("tag=", "abcd"),
    ] {
        let path = format!("/workflows?sort_key=name&sort_direction=asc&{query}");
        let listed = service.flows(Method::GET, &path).send().await.expect(200);
        let names = listed["workflows"].as_array().unwrap().iter();
        let names: String = names.map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, expect, "{query}");
    }
}

#[tokio::test]
async fn workflow_of_other_organization_returns_404() {
    let service = Service::start().await;
    let id = service.workflow_of(pass("one")).await;
    let execution = service.trigger(&id, json!({})).await;
    service.completed(&execution).await;
    let paths = [
        (Method::GET, format!("/workflows/{id}"), "workflow not found"),
        (Method::GET, "/workflows/flow".to_owned(), "workflow not found"),
        (Method::PUT, format!("/workflows/{id}/versions/v1"), "workflow not found"),
        (Method::GET, format!("/workflows/{id}/executions"), "workflow not found"),
        (Method::POST, format!("/{id}/trigger"), "workflow not found"),
        (Method::GET, format!("/executions/{execution}"), "execution not found"),
        (Method::POST, format!("/executions/{execution}/cancel"), "execution not found"),
        (Method::POST, format!("/executions/{execution}/redrive"), "execution not found"),
    ];
    for (method, path, expect) in paths {
        let ask = service.ask(Role::Workflows, method, &format!("/api/v1{path}"));
        let missed = ask.key(&service.other_key).json(&json!({})).send().await.expect(404);
        assert_eq!(missed["error"], expect, "{path}");
    }
}

#[tokio::test]
async fn workflow_error_suggests_similar_slug() {
    let service = Service::start().await;
    let id = service.workflow_of(pass("one")).await;
    let slug = service.flows(Method::GET, &format!("/workflows/{id}")).send().await.expect(200);
    let slug = slug["slug"].as_str().unwrap();
    let misspelled = format!("{slug}x");
    let routes = |name: &str| {
        [
            (Role::Workflows, Method::GET, format!("/api/v1/workflows/{name}")),
            (Role::Workflows, Method::PUT, format!("/api/v1/workflows/{name}")),
            (Role::Workflows, Method::DELETE, format!("/api/v1/workflows/{name}")),
            (Role::Workflows, Method::PUT, format!("/api/v1/workflows/{name}/versions/v1")),
            (Role::Workflows, Method::GET, format!("/api/v1/workflows/{name}/executions")),
            (Role::Workflows, Method::POST, format!("/api/v1/{name}/trigger")),
            (Role::Workflows, Method::POST, format!("/api/v1/{name}/bulk-trigger")),
            (Role::Base, Method::GET, format!("/v1/workflows/{name}")),
            (Role::Base, Method::POST, format!("/v1/workflows/{name}/trigger")),
            (Role::Base, Method::POST, format!("/v1/public/{name}/versions/v1/trigger")),
            (Role::Flows, Method::GET, format!("/api/v1/{name}")),
            (Role::Flows, Method::POST, format!("/api/v1/{name}/trigger")),
        ]
    };
    let hint = async |role, method: Method, path: &str, key: &str| {
        let body = json!({"definition": pass("one"), "parameters": [{}]});
        let ask = service.ask(role, method, path).key(key).undocumented();
        ask.json(&body).send().await.expect(404)["details"]["hint"].clone()
    };
    for (role, method, path) in routes(&misspelled) {
        let expected = json!(format!("did you mean {slug}?"));
        assert_eq!(hint(role, method.clone(), &path, &service.key).await, expected, "{path}");
        // Slugs of other organizations must not be revealed.
        assert_eq!(hint(role, method, &path, &service.other_key).await, Value::Null, "{path}");
    }
    for name in ["nothing-like-it", &id.replace(['a', '0'], "f")] {
        for (role, method, path) in routes(name) {
            assert_eq!(hint(role, method, &path, &service.key).await, Value::Null, "{path}");
        }
    }
    service.flows(Method::DELETE, &format!("/workflows/{id}")).send().await;
    for (role, method, path) in routes(&misspelled) {
        assert_eq!(hint(role, method, &path, &service.key).await, Value::Null, "deleted: {path}");
    }
}

#[tokio::test]
async fn workflow_create_is_idempotent_per_key() {
    let service = Service::start().await;
    let create = || {
        let ask = service.flows(Method::POST, "/workflows").json(&new("a"));
        ask.header("idempotency-key", "k").send()
    };
    let (first, second) = tokio::join!(create(), create());
    assert_eq!(first.expect(201), second.expect(201));
    let listed = service.flows(Method::GET, "/workflows").send().await.expect(200);
    assert_eq!(listed["total_count"], 1);
}

#[tokio::test]
async fn workflow_slug_never_equals_route_segment() {
    let service = Service::start().await;
    let definition = json!({"steps": [{"step_id": "p", "type": "pass", "result": 1}]});
    let words = words_beside("workflow");
    for known in ["create", "executions", "trigger", "bulk-trigger", "public", "categories"] {
        assert!(words.contains(known), "{known}: {words:?}");
    }
    for word in words.into_iter().filter(|word| !word.is_empty()) {
        let name = word.to_uppercase();
        let body = json!({"name": name, "description": "x", "definition": definition});
        let made = service.flows(Method::POST, "/workflows").json(&body).send().await.expect(201);
        let slug = made["slug"].as_str().unwrap();
        assert_eq!(slug, format!("{word}-2"));
        for path in [
            format!("/v1/workflows/{slug}"),
            format!("/v1/workflows/{slug}/versions"),
            format!("/v1/workflows/{slug}/executions"),
        ] {
            assert_eq!(service.get(&path).await.status, 200, "{path}");
        }
        let run = service.flows(Method::POST, &format!("/{slug}/trigger")).json(&json!({}));
        assert_eq!(run.send().await.status, 202, "{slug}");
    }
}

#[tokio::test]
async fn named_resources_never_share_a_path_level_with_fixed_segments() {
    // A new route next to one of these would make resources of that name unreachable: choose
    // another path.
    for parameter in ["name", "version", "organization", "*slug"] {
        let words = words_beside(parameter);
        assert!(words.is_empty(), "{parameter}: {words:?}");
    }
}

#[tokio::test]
async fn workflow_of_existing_client_is_accepted_on_base_host() {
    let service = Service::start().await;
    let model = json!({"step_id": "m", "type": "model", "model": "text-template",
        "version": "0.0.1", "params": {"template": "hi"},
        "fallback": {"model": "text-template", "version": "2", "params": {"template": "ho"}}});
    let http =
        json!({"step_id": "h", "type": "http", "url": "https://example.com/", "timeout": 20});
    let choice = json!({"step_id": "c", "type": "choice",
        "condition": {"expression": "{{m.output}}", "operator": "string_matches", "value": "h*"},
        "condition_met_branch": {"steps": [{"step_id": "yes", "type": "pass", "result": "met"}]},
        "default_branch": {"steps": [{"step_id": "no", "type": "pass", "result": "default"}]}});
    let body = json!({"name": "Old", "definition": {"steps": [model, http, choice]}});
    let ask = |method, path: &str, body: &Value| {
        service.ask(Role::Base, method, path).key(&service.key).json(body)
    };
    let made = ask(Method::POST, "/v1/workflows", &body).send().await.expect(201);
    assert_eq!(made["description"], "");
    let also = ask(Method::POST, "/v1/workflows/create", &body).send().await;
    assert_eq!(also.status, 201);
    let version = json!({"definition": body["definition"]});
    let put = ask(Method::PUT, "/v1/workflows/old/versions/v2", &version).send().await;
    assert_eq!(put.expect(200)["version_id"], "v2");
    // The workflows host requires both fields, as always.
    let refused = service.flows(Method::POST, "/workflows").json(&body).undocumented().send().await;
    assert_eq!(refused.expect(400)["error"], "description is required");
    let path = "/workflows/old/versions/v3";
    let refused = service.flows(Method::PUT, path).json(&version).undocumented().send().await;
    assert_eq!(refused.expect(400)["error"], "version_id is required");
}

/// Creates a workflow with these steps, which must be invalid; returns the location and the message
/// of its first problem.
async fn problem_of(service: &Service, steps: Value) -> (String, String) {
    let body = json!({"name": "a", "description": "x", "definition": {"steps": steps}});
    let refused = service.flows(Method::POST, "/workflows").json(&body).send().await.expect(400);
    let first = &refused["details"][0];
    assert_eq!(refused["error"], first["message"], "{refused}");
    let text = |field: &str| first[field].as_str().unwrap().to_owned();
    (text("path"), text("message"))
}

#[tokio::test]
async fn workflow_model_parameters_are_validated_when_stored() {
    let service = Service::start().await;
    let step = |params: Value| json!({"step_id": "m", "type": "model", "model": "text-keywords", "params": params});
    for (params, path, said) in [
        (json!({}), "/steps/0/params/text", "missing required field 'text'"),
        (json!({"text": ["{{inputs.x}}"]}), "/steps/0/params/text", "is not of type \"string\""),
        (json!({"text": "{{inputs.x}}", "txt": 1}), "/steps/0/params/txt", "unknown field 'txt'"),
    ] {
        let (place, message) = problem_of(&service, json!([step(params)])).await;
        let start = "step 'm': params do not fit the model 'text-keywords': ";
        assert_eq!(place, path);
        assert!(message.starts_with(start) && message.contains(said), "{message}");
    }
    let (place, _) = problem_of(&service, json!([
        {"step_id": "p", "type": "parallel", "branches": [{"steps": [step(json!({"text": "a", "count": "x"}))]}]},
    ])).await;
    assert_eq!(place, "/steps/0/branches/0/steps/0/params/count");
    let good = json!([step(json!({"text": "a {{inputs.x}}", "count": "{{inputs.count}}"}))]);
    let workflow = service.workflow(good).await;
    let version = json!({"version_id": "v1", "definition": {"steps": [step(json!({}))]}});
    let path = format!("/workflows/{workflow}/versions/v1");
    let put = service.flows(Method::PUT, &path).json(&version).send().await.expect(400);
    assert_eq!(put["details"][0]["path"], "/steps/0/params/text");
}

#[tokio::test]
async fn workflow_conditions_match_patterns_with_references() {
    let service = Service::start().await;
    let choice = |operator: &str, value: &str| {
        json!({"step_id": "c", "type": "choice",
            "condition": {"expression": "{{inputs.name}}", "operator": operator, "value": value},
            "condition_met_branch": {"steps": [{"step_id": "yes", "type": "pass", "result": true}]},
            "default_branch": {"steps": [{"step_id": "no", "type": "pass", "result": false}]}})
    };
    for (operator, value, wanted, expect) in [
        ("string_matches", "*.png", "", json!(true)),
        ("string_matches", "{{inputs.wanted}}", "*.pdf", json!(false)),
        ("string_matches", "{{inputs.wanted}}", "picture", json!(true)),
        ("matches", "{{inputs.wanted}}", "^picture-\\d+\\.png$", json!(true)),
        ("matches", "^{{inputs.wanted}}$", ".*", json!(false)),
        ("matches", "{{inputs.wanted}}", "(", Value::Null),
    ] {
        let workflow = service.workflow(json!([choice(operator, value)])).await;
        let inputs = json!({"inputs": {"name": "picture-7.png", "wanted": wanted}});
        let ended = service.completed(&service.trigger(&workflow, inputs).await).await;
        assert_eq!(ended["output"], expect, "{operator} {value} {wanted}: {ended}");
        if expect.is_null() {
            assert_eq!(ended["error"], "ReferenceError", "{ended}");
            assert!(
                ended["error_cause"]
                    .as_str()
                    .unwrap()
                    .contains("does not resolve to a valid pattern")
            );
        }
    }
    let (place, message) = problem_of(&service, json!([choice("matches", "*.png")])).await;
    assert_eq!(place, "/steps/0/condition/value");
    assert!(message.contains("`+`, `?` or `{` repeats nothing"), "{message}");
}
