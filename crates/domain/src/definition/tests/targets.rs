//! Tests which URLs HTTP steps may have.

use super::*;

#[test]
fn definition_http_step_with_colon_in_user_name_is_rejected() {
    for url in ["http://a%3Ab:c@h/", "http://a%3ab@h/{{inputs.x}}", "https://%3A:p@h:8/?q"] {
        let steps = json!([{"step_id": "a", "type": "http", "url": url}]);
        let problems = problems_of(steps.clone());
        let expect = "/steps/0/url | step 'a': url must not have ':' in its user name";
        assert_eq!(problems.lines().next(), Some(expect), "{problems}");
        Plan::load(Some(&json!({"steps": steps}))).unwrap();
    }
    plan_of(json!([{"step_id": "a", "type": "http", "url": "http://ab:c%3Ad@h/"}]));
}

#[test]
fn definition_http_step_to_port_0_is_rejected() {
    let steps = |url: &str| {
        let step = json!({"step_id": "a", "type": "http", "url": url});
        let mut with_fallback = http("b");
        with_fallback["fallback"] = json!({"url": url});
        json!([step, with_fallback])
    };
    for url in [
        "http://h.example:0/",
        "https://[2001:db8::1]:00000/x",
        "http://h.example:0/{{inputs.x}}",
        "http://{{inputs.user}}@h.example:0/",
    ] {
        let problems = problems_of(steps(url));
        let expect =
            "/steps/0/url | step 'a': url must not have the port 0: no server listens there";
        assert_eq!(problems.lines().next(), Some(expect), "{problems}");
        assert!(problems.contains("/steps/1/fallback/url | step 'b': fallback/url must not have"));
        Plan::load(Some(&json!({"steps": steps(url)}))).unwrap();
    }
    plan_of(steps("http://h.example:10/{{inputs.x}}"));
}
