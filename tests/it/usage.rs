//! Usage reports, which must match the calls and the charges, and budgets of organizations.

use hyper::Method;
use orrery_api::Role;
use orrery_domain::account::EntryKind;
use orrery_domain::ids::KeyId;
use orrery_domain::key_policy::{BudgetPeriod, KeyPolicy, Scope};
use orrery_domain::money::Usd;
use orrery_domain::usage::Day;
use serde_json::{Value, json};

use crate::batches;
use crate::chat::request;
use crate::files_of_people::run;
use crate::support::{Answer, Provider, Receiver, Service, Upstream, until};

/// A token of an answer costs a thousandth of a dollar.
const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 0.0, \
                     per_million_output_tokens = 1000.0 }]\n";

async fn key(service: &Service, name: &str, policy: KeyPolicy) -> (KeyId, String) {
    let accounts = &service.running.services.accounts;
    let owner = service.organization.id;
    let made = accounts.create_key_with(owner, name, "ana@example.com", None, policy).await;
    let (key, text) = made.unwrap();
    (key.id, text)
}

async fn report(service: &Service, query: &str) -> Vec<Value> {
    let answer = service.get(&format!("/v1/usage?{query}")).await.expect(200);
    answer["data"].as_array().unwrap().clone()
}

async fn chat(service: &Service, key: &str, body: &Value) -> Answer {
    service.ask(Role::Base, Method::POST, "/v1/chat/completions").key(key).json(body).send().await
}

fn today(service: &Service) -> Day {
    Day::of(service.running.services.clock.now())
}

fn tagged(tags: &[&str]) -> KeyPolicy {
    KeyPolicy { tags: tags.iter().map(|tag| (*tag).to_owned()).collect(), ..KeyPolicy::default() }
}

/// Calls models with two keys in every possible way.
async fn use_everything(service: &Service, up: &Upstream) -> (KeyId, String) {
    let provider = Provider::start().await;
    let priced = "[cost]\ntype = 'fixed'\namount = 0.002\n";
    service.manifest(&provider.manifest("echo", "/echo", priced));
    service.manifest(&up.manifest("near", "chat", ""));
    let (id, second) = key(service, "=second", tagged(&["team=a", "eu"])).await;
    for _ in 0..2 {
        up.says("hello", 3, 5);
        chat(service, &second, &request("far")).await.expect(200);
    }
    up.answers(404, json!({"error": {"message": "no such model"}}).to_string());
    chat(service, &second, &request("typo")).await.expect(404);
    let prediction = service.create("echo", json!({"n": 1})).await;
    service.ended(&prediction).await;
    let step = json!({"step_id": "a", "type": "model", "model": "echo", "params": {"n": 1}});
    let workflow = service.workflow(json!([step])).await;
    let run = service.trigger(&workflow, json!({})).await;
    assert_eq!(service.completed(&run).await["status"], "completed");
    up.says("hello", 7, 1);
    let input = json!({"prompt": "hello"});
    let prediction = service.create("near", input).await;
    assert_eq!(service.ended(&prediction).await["status"], "success");
    (id, second)
}

#[tokio::test]
async fn usage_counts_every_kind_of_call_once_also_after_a_restart() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    let (id, _) = use_everything(&service, &up).await;
    let expected = [
        json!({"key_id": id, "key": "=second", "model": "far", "requests": 2,
            "input_tokens": 6, "output_tokens": 10, "cost_usd": 0.01}),
        json!({"key_id": id, "key": "=second", "model": "typo", "requests": 1,
            "input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}),
    ];
    let of_second = format!("group_by=key,model&key_id={id}");
    assert_eq!(report(&service, &of_second).await, expected);
    let models = report(&service, "group_by=model").await;
    let of = |name: &str| models.iter().find(|group| group["model"] == name).unwrap().clone();
    let echo = of("echo");
    assert_eq!((&echo["requests"], &echo["cost_usd"]), (&json!(2), &json!(0.004)));
    assert_eq!(of("near")["output_tokens"], 1);

    let ledger = service.ledger().await;
    let charges = ledger.iter().filter(|entry| entry.kind == EntryKind::Charge);
    let charged: Usd = charges.map(|entry| -entry.amount).sum();
    let day = today(&service);
    let days = report(&service, "group_by=day").await;
    assert_eq!(days.len(), 1);
    assert_eq!(days[0]["day"], day.to_string());
    assert_eq!(days[0]["cost_usd"], charged.dollars());
    let months = report(&service, "group_by=month").await;
    assert_eq!(months[0]["month"], day.month().to_string());
    assert_eq!(months[0]["requests"], days[0]["requests"]);
    let rows = service.get("/v2/executions?limit=100").await.expect(200);
    let rows = rows["executions"].as_array().unwrap();
    let calls = rows.iter().filter(|row| row["type"] != "workflow").count();
    assert_eq!(days[0]["requests"], calls);

    let tags = report(&service, "group_by=tag").await;
    let names: Vec<&Value> = tags.iter().map(|group| &group["tag"]).collect();
    assert_eq!(names, [&Value::Null, &json!("eu"), &json!("team=a")]);
    assert_eq!(tags[1]["requests"], tags[2]["requests"]);
    let members = report(&service, "group_by=member").await;
    assert!(members.iter().any(|group| group["member"] == "ana@example.com"), "{members:?}");

    let service = service.restart().await;
    assert_eq!(report(&service, &of_second).await, expected);
    let accounts = &service.running.services.accounts;
    accounts.delete_key(service.organization.id, id).await.unwrap();
    assert_eq!(report(&service, &of_second).await, expected, "the key is deleted");
    let (from, to) = (day.plus(1), day.plus(30));
    assert!(report(&service, &format!("from={from}&to={to}")).await.is_empty());
}

#[tokio::test]
async fn usage_counts_lines_of_batches_and_work_of_the_dashboard() {
    let up = Upstream::start().await;
    batches::answers(&up);
    let service = Service::configured(&up.config(PRICE)).await;
    let lines = [batches::chat("a", "one"), batches::chat("b", "bad"), batches::chat("c", "two")];
    let made = batches::create(&service, &lines).await;
    batches::reached(&service, &made, "completed").await;
    let [group] = &report(&service, "group_by=model").await[..] else { panic!("one model") };
    assert_eq!((&group["requests"], &group["output_tokens"]), (&json!(3), &json!(2)));

    let owner = service.owner().await;
    let asked = service.asks(&owner, Method::POST, "/api/base/v1/chat/completions");
    asked.json(&request("far")).send().await.expect(200);
    let keys = report(&service, "").await;
    let dashboard = keys.iter().find(|group| group["key"] == "dashboard").unwrap();
    assert_eq!((&dashboard["requests"], &dashboard["key_id"]), (&json!(1), &Value::Null));
    let asked = service.asks(&owner, Method::GET, "/api/base/v1/usage?group_by=key");
    assert_eq!(asked.send().await.expect(200)["data"], json!(keys));
}

#[tokio::test]
async fn usage_as_csv_has_the_same_columns_and_no_formulas() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    let (id, second) = key(&service, "=1+1", tagged(&["@a"])).await;
    up.says("hello", 3, 5);
    chat(&service, &second, &request("far")).await.expect(200);
    let month = today(&service).month();
    let path = "/v1/usage?group_by=model,key,month,tag,member&format=csv";
    let answer = service.get(path).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), "text/csv; charset=utf-8");
    assert_eq!(answer.header("content-disposition"), "attachment; filename=\"usage.csv\"");
    assert_eq!(
        answer.text,
        format!(
            "month,key_id,key,member,tag,model,requests,input_tokens,output_tokens,cost_usd\r\n\
             {month},{id},\"'=1+1\",\"ana@example.com\",\"'@a\",\"far\",1,3,5,0.005000\r\n"
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_command_prints_a_table_json_or_csv() {
    let service = Service::start().await;
    let id = service.create("text-template", json!({"template": "a"})).await;
    service.ended(&id).await;
    let org = &service.organization.name;
    let of = |more: &[&'static str]| [&["usage", "--org", org, "--by", "model,day"], more].concat();
    let (good, table, said) = run(&service, &of(&[])).await;
    assert!(good, "{said}");
    let lines: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    let day = today(&service).to_string();
    assert_eq!(lines[0], ["DAY", "MODEL", "REQUESTS", "INPUT", "OUTPUT", "USD"]);
    assert_eq!(lines[1], [day.as_str(), "text-template", "1", "0", "0", "0.000000"]);
    let (_, text, _) = run(&service, &of(&["--json"])).await;
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["data"], json!(report(&service, "group_by=day,model").await));
    let (_, csv, _) = run(&service, &of(&["--csv"])).await;
    assert_eq!(csv, service.get("/v1/usage?group_by=day,model&format=csv").await.text);
    let (good, _, said) = run(&service, &["usage", "--from", "yesterday"]).await;
    assert!(!good && said.contains("must be a day such as 2026-11-30"), "{said}");
}

#[tokio::test]
async fn usage_needs_the_scope_read_and_a_valid_query() {
    let service = Service::start().await;
    let only = |scope| KeyPolicy { scopes: Some([scope].into()), ..KeyPolicy::default() };
    let (_, reads) = key(&service, "reads", only(Scope::Read)).await;
    let (_, chats) = key(&service, "chats", only(Scope::Chat)).await;
    let ask = |key: &str| service.ask(Role::Base, Method::GET, "/v1/usage").key(key).send();
    assert_eq!(ask(&reads).await.expect(200), json!({"data": []}));
    let refused = ask(&chats).await;
    refused.expect_error(403, "this key may not do this: it needs the scope read");
    for (query, message) in [
        ("from=yesterday", "from must be a day such as 2026-11-30"),
        ("to=2026-11", "to must be a day such as 2026-11-30"),
        ("from=2026-11-30&to=2026-11-29", "from must not be after to"),
        ("from=2020-01-01&to=2026-01-01", "from and to must span at most 1100 days"),
        ("key_id=1", "key_id must be a UUID"),
        ("group_by=year", "group_by must be one or more of day, month, key, member, tag, model"),
        ("format=xml", "format must be one or more of json, csv"),
        ("format=json,csv", "format must be json or csv"),
    ] {
        let answer = service.ask(Role::Base, Method::GET, &format!("/v1/usage?{query}"));
        answer.key(&service.key).undocumented().send().await.expect_error(400, message);
    }
    let today = today(&service);
    let (from, to) = (today.minus(500), today);
    let by_day = service.get(&format!("/v1/usage?from={from}&to={to}&group_by=day")).await;
    let sentence = "usage by day is kept for 400 days: for older usage, begin on the first and end \
                    on the last day of a month, and do not group by day";
    by_day.expect_error(400, sentence);
    let month = from.month().next().first_day();
    assert!(report(&service, &format!("from={month}&to={to}&group_by=month")).await.is_empty());
}

#[tokio::test]
async fn monthly_budget_of_an_organization_limits_all_its_keys() {
    let up = Upstream::start().await;
    let lines = format!("dashboard.admin_api = true\n{}", up.config(PRICE));
    let service = Service::configured(&lines).await;
    let accounts = &service.running.services.accounts;
    let (_, admin) = accounts.create_admin_key("terraform", "test", None).await.unwrap();
    let name = &service.organization.name;
    let ask = |method: Method, path: &str| {
        let path = format!("/admin/v1/organizations/{name}{path}");
        let ask = service.ask(Role::Dashboard, method, &path);
        ask.header("authorization", format!("Bearer {admin}"))
    };
    let change = |body: Value| ask(Method::PUT, "/limits").json(&body).send();
    let changed = change(json!({"monthly_budget_usd": 0.1})).await.expect(200);
    let budget = json!({"limit": 0.1, "used": 0.0});
    assert_eq!(changed["limits"]["monthly_budget_usd"], budget);
    change(json!({"monthly_budget_usd": -1})).await.expect(400);

    let (_, second) = key(&service, "second", KeyPolicy::default()).await;
    let mut body = request("far");
    body["max_tokens"] = json!(60);
    up.says("hello", 1, 60);
    chat(&service, &second, &body).await.expect(200);
    let refused = chat(&service, &service.key, &body).await.expect(402);
    let sentence = "the budget of this organization for this month is 0.100000 USD, of which \
                    0.060000 USD are spent and 0.000000 USD are reserved; this may cost 0.060000 USD";
    assert_eq!(refused["error"]["message"], sentence);
    let limits = service.get("/v1/limits").await.expect(200);
    assert_eq!(limits["monthly_budget_usd"], json!({"limit": 0.1, "used": 0.06}));

    let used = ask(Method::GET, "/usage?group_by=key").send().await.expect(200);
    assert_eq!(used["data"], json!(report(&service, "group_by=key").await));

    let free = service.create("text-template", json!({"template": "a"})).await;
    assert_eq!(service.ended(&free).await["status"], "success", "free work continues");

    let service_again = service.restart().await;
    chat(&service_again, &service_again.key, &body).await.expect(402);
    let used = report(&service_again, "group_by=model").await;
    assert_eq!((&used[0]["model"], &used[0]["cost_usd"]), (&json!("far"), &json!(0.06)));
    let accounts = &service_again.running.services.accounts;
    let raise = |held| orrery_domain::account::Limits { monthly_budget: None, ..held };
    accounts.change_limits(service_again.organization.id, raise).await.unwrap();
    up.says("hello", 1, 60);
    chat(&service_again, &service_again.key, &body).await.expect(200);
}

#[tokio::test]
async fn budgets_are_announced_once_for_each_threshold_also_after_a_restart() {
    let up = Upstream::start().await;
    let mut receiver = Receiver::start().await;
    let url = receiver.url();
    let lines = format!("{}[alerts]\nurl = {url:?}\nevery = \"1s\"\n", up.config(PRICE));
    let service = Service::configured(&lines).await;
    let accounts = &service.running.services.accounts;
    let limit = |held| orrery_domain::account::Limits {
        monthly_budget: Some(Usd::from_micros(200_000)),
        ..held
    };
    accounts.change_limits(service.organization.id, limit).await.unwrap();
    let policy = KeyPolicy {
        max_budget: Some(Usd::from_micros(100_000)),
        budget_duration: Some(BudgetPeriod::Month),
        ..KeyPolicy::default()
    };
    let (id, second) = key(&service, "ci", policy).await;
    let mut body = request("far");
    body["max_tokens"] = json!(50);
    up.says("hello", 1, 50);
    chat(&service, &second, &body).await.expect(200);
    let first = budget_notice(&mut receiver).await;
    assert_eq!(first["type"], "alert.notice");
    let data = &first["data"];
    let name = &service.organization.name;
    let about = format!("the key ci of the organization {name}");
    assert_eq!((&data["about"], &data["severity"]), (&json!(about), &json!("warning")));
    let said = format!("50 % of the budget of {about} is spent: 0.050000 of 0.100000 USD");
    assert_eq!(data["detail"], said);
    assert_eq!(data["fix"], format!("orrery key update {id} --budget USD"));

    let file = service.running.services.store.folder().join("alerts.json");
    until("the outcome is stored", async || {
        let stored: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        stored.get("notices").is_none().then_some(())
    })
    .await;
    let service = service.restart().await;
    up.says("hello", 1, 50);
    chat(&service, &second, &body).await.expect(200);
    // Both budgets reach a threshold; the key's first threshold is not announced again.
    let both = [budget_notice(&mut receiver).await, budget_notice(&mut receiver).await];
    let mut said: Vec<&str> =
        both.iter().map(|one| one["data"]["detail"].as_str().unwrap()).collect();
    said.sort_unstable();
    assert!(said[0].starts_with("100 % of the budget of the key ci "), "{said:?}");
    assert!(said[1].starts_with("50 % of the budget of the organization "), "{said:?}");
    chat(&service, &second, &body).await.expect(402);
}

/// Returns the next message about a budget.
async fn budget_notice(receiver: &mut Receiver) -> Value {
    loop {
        let body = receiver.next().await.json();
        if body["data"]["subject"] == "budget" {
            return body;
        }
    }
}
