//! Tests of the usage of answers in various formats.

use super::*;
use orrery_domain::classify::ErrorClass;
use orrery_runners::openai::Said;

fn seen(meter: &mut Meter, event: &str) -> Seen {
    meter.event(event.as_bytes()).unwrap()
}

#[test]
fn meter_takes_the_models_own_count() {
    let mut meter = Meter::new(100, false);
    let delta = r#"{"choices":[{"index":0,"delta":{"content":"hello"}}],"usage":null}"#;
    assert_eq!(seen(&mut meter, delta), Seen::Part);
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
    assert_eq!(seen(&mut meter, usage), Seen::Usage);
    assert_eq!(meter.tokens(), Tokens { input: 3, output: 2, ..Tokens::default() });
}

#[test]
fn meter_estimates_uncounted_answers_from_all_texts() {
    let mut meter = Meter::new(100, false);
    assert_eq!(meter.tokens(), Tokens::default(), "nothing came");
    for event in [
        r#"{"choices":[{"delta":{"content":"1234"}}]}"#,
        r#"{"choices":[{"delta":{"reasoning_content":"1234"}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"arguments":"\"\u00e9"}}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[12]}}]}"#,
        r#"{"choices":[{"delta":{"role":"assistant"}}]}"#,
    ] {
        assert_eq!(seen(&mut meter, event), Seen::Part);
    }
    assert_eq!(meter.tokens(), Tokens::estimated(100, 3));
    assert!(!meter.is_finished());
    assert_eq!(seen(&mut meter, " "), Seen::Part, "an event without a text");
    seen(&mut meter, r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#);
    assert!(meter.is_finished());
}

#[test]
fn meter_keeps_usage_that_arrives_with_text() {
    let mut meter = Meter::new(9, false);
    let event = r#"{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
    assert_eq!(seen(&mut meter, event), Seen::Part, "it is a part of the answer too");
    assert_eq!(meter.tokens(), Tokens { input: 1, output: 1, ..Tokens::default() });
}

#[test]
fn meter_counts_unknown_forms_by_their_bytes_and_refuses_garbage() {
    let mut meter = Meter::new(1, false);
    assert_eq!(seen(&mut meter, r#"{"choices":"odd"}"#), Seen::Part);
    assert_eq!(meter.tokens().output, 5);
    assert_eq!(meter.event(b"not json").unwrap_err().status, 502);
}

#[test]
fn meter_reads_an_error_in_a_stream() {
    let event =
        r#"{"error":{"message":"overloaded","code":"content_filter","type":"t","param":1}}"#;
    let Seen::Failed(failure) = seen(&mut Meter::new(1, false), event) else { panic!() };
    let said = Said {
        kind: Some("t".to_owned()),
        param: Some("1".to_owned()),
        code: Some("content_filter".to_owned()),
        ..Said::default()
    };
    let expected = Failure {
        said: Box::new(said),
        ..Failure::new(502, ErrorClass::ContentModeration, "overloaded")
    };
    assert_eq!(*failure, expected);
}

#[test]
fn meter_reads_whole_answers() {
    for (answer, tokens) in [
        (r#"{"choices":[{"message":{"content":"12345678"}}]}"#, Tokens::estimated(7, 2)),
        (
            r#"{"data":[1],"usage":{"prompt_tokens":5,"total_tokens":5}}"#,
            Tokens { input: 5, output: 0, ..Tokens::default() },
        ),
        (r#"{"choices":"odd","usage":{"prompt_tokens":5}}"#, Tokens::estimated(5, 12)),
        (r#"{"usage":{"prompt_tokens":-1}}"#, Tokens::estimated(7, 0)),
    ] {
        let mut meter = Meter::new(7, false);
        let object: RawObject = serde_json::from_str(answer).unwrap();
        meter.whole(Operation::Chat, &object, answer.as_bytes());
        assert_eq!(meter.tokens(), tokens, "{answer}");
    }
}

#[test]
fn meter_adds_up_partial_usage() {
    let mut meter = Meter::new(100, false);
    let start =
        r#"{"type":"message_start","message":{"usage":{"input_tokens":3,"output_tokens":1}}}"#;
    assert_eq!(seen(&mut meter, start), Seen::Part, "it is more than a usage");
    let delta = r#"{"choices":[{"delta":{"content":"12345678"}}]}"#;
    assert_eq!(seen(&mut meter, delta), Seen::Part);
    assert_eq!(meter.tokens(), Tokens { input: 3, output: 1, ..Tokens::default() });
    let end = r#"{"type":"message_delta","usage":{"output_tokens":9}}"#;
    assert_eq!(seen(&mut meter, end), Seen::Part);
    assert_eq!(meter.tokens(), Tokens { input: 3, output: 9, ..Tokens::default() });
}

#[test]
fn meter_estimates_missing_counts() {
    let delta = r#"{"choices":[{"delta":{"content":"12345678"}}]}"#;
    for (usage, input, output) in [
        (r#"{"choices":[],"usage":{"prompt_tokens":3}}"#, 3, 2),
        (r#"{"choices":[],"usage":{"completion_tokens":9}}"#, 100, 9),
        (r#"{"choices":[],"usage":{"prompt_tokens":null,"completion_tokens":null}}"#, 100, 2),
    ] {
        let mut meter = Meter::new(100, false);
        seen(&mut meter, delta);
        assert_eq!(seen(&mut meter, usage), Seen::Usage);
        assert_eq!(meter.tokens(), Tokens::estimated(input, output), "{usage}");
    }
    let mut meter = Meter::new(100, false);
    let ollama = r#"{"choices":[{"delta":{"content":"x"}}],"prompt_eval_count":3,"eval_count":4}"#;
    assert_eq!(seen(&mut meter, ollama), Seen::Part);
    assert_eq!(meter.tokens(), Tokens { input: 3, output: 4, ..Tokens::default() });
}

#[test]
fn meter_reads_a_failed_choice_and_a_whole_message() {
    let meter = || Meter::new(1, false);
    for event in [
        r#"{"choices":[{"delta":{},"finish_reason":"error"}]}"#,
        r#"{"choices":[{"delta":{},"error":{"message":"no"}}]}"#,
        r#"[{"error":{"message":"no"}}]"#,
        r#""no""#,
    ] {
        assert!(matches!(seen(&mut meter(), event), Seen::Failed(_)), "{event}");
    }
    let event = r#"{"choices":[{"message":{"content":"four"},"finish_reason":"stop"}]}"#;
    let mut meter = meter();
    assert_eq!(seen(&mut meter, event), Seen::Message);
    assert_eq!((meter.bytes(), meter.is_finished()), (4, true));
}
