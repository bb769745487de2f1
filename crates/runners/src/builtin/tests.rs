//! Tests every built-in model on valid and invalid input. Models are called as the engine calls
//! them: schema validation first, then the run.

use std::path::PathBuf;

use serde_json::json;

use super::*;
use orrery_http::egress::Policy;
use orrery_schema::Schema;

/// Returns a reader of a service without files.
fn no_files() -> Sources {
    Sources::new(Policy::default(), None)
}

/// Runs the model in this process; `tests/it/builtins.rs` tests the workers' limits.
async fn run(slug: &str, input: Value) -> Result<Value, String> {
    let builtin = find(slug).unwrap();
    let schema = Schema::compile(&(builtin.schema)()).unwrap();
    let input = schema.check(input).map_err(|violations| violations[0].message.clone())?;
    let context = BuiltinContext::new(no_files(), Workers::new(PathBuf::new(), None));
    let answer = async {
        let image = match builtin.work {
            Work::Pure { .. } => Bytes::new(),
            Work::OnImage { .. } => read_image(&context.sources, text(&input, "image")).await?,
        };
        drop(context.budget.take(builtin.weigh(&input, &image)?).await?);
        builtin.compute(&input, &image)
    };
    answer.await.map_err(|failure| {
        assert_eq!(failure.class, ErrorClass::InvalidUserInput, "{}", failure.message);
        failure.message
    })
}

#[tokio::test]
async fn text_template_renders_within_limits() {
    let hello = json!({"template": "Hello {{ name }}!", "values": {"name": "Ada"}});
    assert_eq!(run("text-template", hello).await, Ok(json!("Hello Ada!")));
    for (template, expect) in [
        ("{{ missing }}", "undefined value"),
        ("{% if", "syntax error"),
        ("{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}", "fuel"),
        ("{% include '/etc/passwd' %}", "include non-existing template"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for i in range(5000) %}{{ 'x' * 1000 }}{% endfor %}", "longer than"),
        ("{{ 'x' * 999999999 }}", "too large"),
    ] {
        let said = run("text-template", json!({"template": template})).await.unwrap_err();
        assert!(said.contains(expect), "{said}");
    }
    assert!(run("text-template", json!({})).await.unwrap_err().contains("'template'"));
}

#[tokio::test]
async fn builtin_inputs_accept_whole_numbers_in_any_notation() {
    let text = "One cat. Two dogs. Three birds. Four fish.";
    for (model, field, least) in [
        ("text-summary", "sentences", 1),
        ("text-keywords", "count", 1),
        ("html-to-text", "width", 20),
    ] {
        let written = match model {
            "html-to-text" => "html",
            _ => "text",
        };
        let text = match model {
            "html-to-text" => "<p>a text that is longer than the width that it is to have</p>",
            _ => text,
        };
        let whole = run(model, json!({written: text, field: least})).await.unwrap();
        let float = run(model, json!({written: text, field: f64::from(least)})).await.unwrap();
        let default = run(model, json!({written: text})).await.unwrap();
        assert_eq!(whole, float, "{model}");
        assert_ne!(whole, default, "{model}");
        assert!(run(model, json!({written: text, field: 1.5})).await.is_err(), "{model}");
    }
}

#[tokio::test]
async fn text_sentiment_of_neutral_text_ignores_emphasis() {
    for text in [
        "Hi! How are you?",
        "The meeting is at 5!",
        "Order 66 shipped!",
        "What?? When???",
        "It is on the table!!!!!! Where?????",
    ] {
        let output = run("text-sentiment", json!({"text": text})).await.unwrap();
        assert_eq!(
            (&output["label"], &output["score"]),
            (&json!("neutral"), &json!(0.0)),
            "{text}"
        );
    }
    for (text, label) in [("I hate this!!", "negative"), ("I love this!!", "positive")] {
        let output = run("text-sentiment", json!({"text": text})).await.unwrap();
        assert_eq!(output["label"], label, "{text}");
    }
}

/// The expected scores are those of `vaderSentiment` 3.3.2.
#[tokio::test]
async fn text_sentiment_follows_current_rules() {
    for (text, score) in [
        ("no good", -0.3412),
        ("no problem", 0.3089),
        ("There is no hope", -0.3412),
        ("I love this?", 0.6369),
        ("I love this", 0.6369),
    ] {
        let output = run("text-sentiment", json!({"text": text})).await.unwrap();
        let found = output["score"].as_f64().unwrap();
        assert!((found - score).abs() < 0.0001, "{text}: {found}");
    }
}

#[tokio::test]
async fn text_language_detects_languages() {
    for (text, language) in [
        ("The quick brown fox jumps over the lazy dog and runs away.", "eng"),
        ("Der schnelle braune Fuchs springt über den faulen Hund.", "deu"),
        ("Быстрая коричневая лиса прыгает через ленивую собаку.", "rus"),
    ] {
        let output = run("text-language", json!({"text": text})).await.unwrap();
        assert_eq!(output["language"], language);
    }
    assert!(run("text-language", json!({"text": "123"})).await.unwrap_err().contains("no letters"));
}

#[tokio::test]
async fn text_sentiment_labels_polarity() {
    for (text, label) in [
        ("I love this, it is wonderful!", "positive"),
        ("This is terrible and I hate it.", "negative"),
        ("The box stands on the table.", "neutral"),
    ] {
        let output = run("text-sentiment", json!({"text": text})).await.unwrap();
        assert_eq!(output["label"], label, "{output}");
    }
}

const ARTICLE: &str = "Solar power is growing fast. Many towns build solar power plants on old \
    roofs. My neighbour has a cat. Solar plants give clean power to towns. The cat sleeps a lot.";

#[tokio::test]
async fn text_summary_keeps_the_topic() {
    let output = run("text-summary", json!({"text": ARTICLE, "sentences": 2})).await.unwrap();
    let summary = output.as_str().unwrap();
    assert!(summary.contains("solar power plants") && !summary.contains("cat"), "{summary}");
    assert_eq!(run("text-summary", json!({"text": ""})).await, Ok(json!("")));
}

#[tokio::test]
async fn text_keywords_returns_topic_phrases() {
    let output = run("text-keywords", json!({"text": ARTICLE, "count": 3})).await.unwrap();
    let first = output[0]["keyword"].as_str().unwrap();
    assert!(first.contains("solar power plants"), "{output}");
    assert_eq!(output.as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn json_query_evaluates_within_limits() {
    let document = json!({"people": [{"name": "a", "age": 20}, {"name": "b", "age": 40}]});
    let input = json!({"expression": "people[?age > `30`].name", "document": document});
    assert_eq!(run("json-query", input).await, Ok(json!({"result": ["b"]})));
    let broken = run("json-query", json!({"expression": "people[", "document": 1})).await;
    assert!(broken.unwrap_err().contains("the query failed"));
    let doubling = format!("{}@", "[@,@]|".repeat(40));
    let doubled = json!({"expression": doubling, "document": {"a": 1, "b": 2}});
    let said = run("json-query", doubled).await.unwrap_err();
    assert!(said.contains("the result is larger than"), "{said}");
    let nested = format!("{}@{}", "[".repeat(101), "]".repeat(101));
    let said = run("json-query", json!({"expression": nested, "document": 1})).await.unwrap_err();
    assert_eq!(said, "the result nests deeper than 100 levels");
    for (deep, document) in [
        ("[".repeat(500), json!(1)),
        ("!".repeat(500), json!(1)),
        (format!("a{}", "||a".repeat(166)), json!({})),
        (format!("a{}", ".a".repeat(249)), json!({"a": 1})),
    ] {
        let _ended = run("json-query", json!({"expression": deep, "document": document})).await;
    }
}

#[tokio::test]
async fn json_query_computes_exactly_or_refuses() {
    const ID: i64 = 9_007_199_254_740_993;
    let document = json!({
        "a": [{"i": ID, "n": "x"}, {"i": ID - 1, "n": "y"}],
        "ids": [ID, ID - 1, ID + 1], "top": u64::MAX, "few": [1, 2], "none": [], "mixed": [0.5, ID],
        "huge": [1e308, 1e308], "low": -5, "part": [1.5, 2.5], "float": 9_007_199_254_740_992.0,
    });
    for (expression, expect) in [
        ("a[?i==`9007199254740993`].n", json!(["x"])),
        ("a[?i!=`9007199254740993`].n", json!(["y"])),
        ("a[?i<`9007199254740993`].n", json!(["y"])),
        ("ids[0]==ids[1] || ids[0]<=ids[1] || float==ids[0]", json!(false)),
        ("float==ids[1]", json!(true)),
        ("[ids[:1]==ids[1:2], a[0]==a[1], a[0]==a[0]]", json!([false, false, true])),
        ("max(ids)", json!(ID + 1)),
        ("min(ids)", json!(ID - 1)),
        ("sort(ids)", json!([ID - 1, ID, ID + 1])),
        ("sort_by(a, &i)[].n", json!(["y", "x"])),
        ("max_by(a, &i).n", json!("x")),
        ("min_by(a, &n).n", json!("x")),
        ("contains(ids, `9007199254740995`)", json!(false)),
        ("contains(ids, `9007199254740993`)", json!(true)),
        ("[abs(low), abs(ids[0]), floor(ids[0]), ceil(top)]", json!([5, ID, ID, u64::MAX])),
        ("[ceil(part[0]), floor(part[1])]", json!([2, 2])),
        ("sum(ids)", json!(3 * ID)),
        ("[sum(few), sum(part), sum(none), avg(none)]", json!([3, 4.0, 0, null])),
        ("avg(few)", json!(1.5)),
        ("to_number('12')", json!(12)),
        ("to_number('[1]')", json!(null)),
        ("`1e30`", json!(1e30)),
        ("a[?n=='x'] | [0].i", json!(ID)),
    ] {
        let input = json!({"expression": expression, "document": document});
        assert_eq!(run("json-query", input).await, Ok(json!({"result": expect})), "{expression}");
    }
    for (expression, says) in [
        ("`123456789012345678901234567890`", "does not fit into 64 bits"),
        ("a[?i==`-99999999999999999999`]", "does not fit into 64 bits"),
        ("to_number('123456789012345678901234567890')", "does not fit into 64 bits"),
        ("sum([top, top])", "36893488147419103230 does not fit into 64 bits"),
        ("sum(mixed)", "sum cannot compute with 9007199254740993"),
        ("avg(ids)", "avg cannot compute with 9007199254740993"),
        ("sum(huge)", "the result of sum is too large"),
        ("abs('x')", "expects type number"),
    ] {
        let input = json!({"expression": expression, "document": document});
        let said = run("json-query", input).await.unwrap_err();
        assert!(said.contains(says) && !said.contains('\n'), "{said}");
    }
}

#[tokio::test]
async fn html_to_text_extracts_text_and_bounds_nesting() {
    let html =
        "<h1>Title</h1><p>One <b>two</b> <a href='http://x/'>three</a></p><script>no</script>";
    let output = run("html-to-text", json!({"html": html})).await.unwrap();
    let text = output.as_str().unwrap();
    assert!(text.contains("Title") && text.contains("two") && !text.contains("no"), "{text}");
    // An unmatched end tag creates an element, and misplaced content in a table is moved before the
    // table.
    for deep in ["<div>", "<div></p>", "<i>x", "<table><td>", "<svg>"] {
        let html = format!("<table>{}", deep.repeat(499_000 / deep.len()));
        let said = run("html-to-text", json!({"html": html})).await;
        assert!(said.as_ref().is_err_and(|said| said.contains("nests deeper")), "{deep}: {said:?}");
    }
}

fn decoded(output: &Value) -> (u32, u32, image::ImageFormat) {
    let bytes = output.as_str().unwrap().split_once(";base64,").unwrap().1;
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, bytes).unwrap();
    let (image, format) = images::decode(&bytes).unwrap();
    (image.width(), image.height(), format)
}

fn png(width: u32, height: u32) -> String {
    let image = image::DynamicImage::new_rgba8(width, height);
    images::encode(&image, image::ImageFormat::Png).unwrap()
}

#[tokio::test]
async fn image_resize_resizes_crops_and_converts() {
    use image::ImageFormat::{Jpeg, Png};
    for (input, expect) in [
        (json!({"width": 50}), (50, 25, Png)),
        (json!({"height": 10}), (20, 10, Png)),
        (json!({"width": 30, "height": 30}), (30, 15, Png)),
        (json!({"width": 30, "height": 30, "fit": "cover"}), (30, 30, Png)),
        (json!({"width": 30, "height": 40, "fit": "fill", "format": "jpeg"}), (30, 40, Jpeg)),
        (json!({"format": "jpeg"}), (100, 50, Jpeg)),
    ] {
        let mut input = input;
        input["image"] = png(100, 50).into();
        assert_eq!(decoded(&run("image-resize", input).await.unwrap()), expect);
    }
}

fn uri_of(kind: &str, bytes: &[u8]) -> String {
    images::data_uri(kind, bytes)
}

/// Adds EXIF data with an orientation to a JPEG.
fn turned(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let mut exif =
        b"\xff\xe1\x00\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
    exif.extend([orientation, 0, 0, 0, 0, 0, 0]);
    [&jpeg[..2], &exif, &jpeg[2..]].concat()
}

#[tokio::test]
async fn image_resize_turns_photos_upright() {
    use image::ImageFormat::Jpeg;
    let image =
        image::RgbImage::from_fn(32, 16, |x, _| image::Rgb([if x < 16 { 255 } else { 0 }; 3]));
    let mut jpeg = std::io::Cursor::new(Vec::new());
    image::DynamicImage::from(image).write_to(&mut jpeg, Jpeg).unwrap();
    // `white` is a pixel of the left half, which is white, at its position in the upright image.
    for (orientation, size, white) in [
        (1, (32, 16), (2, 8)),
        (3, (32, 16), (29, 8)),
        (6, (16, 32), (8, 2)),
        (8, (16, 32), (8, 29)),
    ] {
        let photo = uri_of("image/jpeg", &turned(jpeg.get_ref(), orientation));
        let output = run("image-resize", json!({"image": photo, "format": "png"})).await.unwrap();
        let bytes = output.as_str().unwrap().split_once(";base64,").unwrap().1;
        let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, bytes);
        let upright = image::load_from_memory(&bytes.unwrap()).unwrap().to_luma8();
        assert_eq!(upright.dimensions(), size, "{orientation}");
        assert!(upright.get_pixel(white.0, white.1).0[0] > 200, "{orientation}");
    }
}

#[tokio::test]
async fn image_resize_takes_frames_only_on_request_and_shows_no_hidden_colors() {
    use image::codecs::gif::GifEncoder;
    use image::{Frame, RgbaImage};
    let gif = |frames: usize| {
        let mut bytes = Vec::new();
        let mut encoder = GifEncoder::new(&mut bytes);
        encoder.encode_frames((0..frames).map(|_| Frame::new(RgbaImage::new(8, 8)))).unwrap();
        drop(encoder);
        uri_of("image/gif", &bytes)
    };
    let of = |image: String, format: Option<&str>| {
        let mut input = json!({"image": image, "width": 4});
        input
            .as_object_mut()
            .unwrap()
            .extend(format.map(|kind| ("format".to_owned(), kind.into())));
        run("image-resize", input)
    };
    assert!(of(gif(1), None).await.is_ok());
    assert!(of(gif(3), None).await.unwrap_err().contains("is animated"));
    assert!(of(gif(3), Some("gif")).await.is_ok() && of(gif(3), Some("png")).await.is_ok());
    let hidden = image::RgbaImage::from_pixel(8, 8, image::Rgba([255, 0, 0, 0]));
    let hidden = images::encode(&hidden.into(), image::ImageFormat::Png).unwrap();
    let output = of(hidden, Some("jpeg")).await.unwrap();
    let bytes = output.as_str().unwrap().split_once(";base64,").unwrap().1;
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, bytes).unwrap();
    let shown = image::load_from_memory(&bytes).unwrap().to_rgb8();
    assert!(shown.get_pixel(2, 2).0.iter().all(|part| *part > 250), "{:?}", shown.get_pixel(2, 2));
}

/// Regression test: if scaled before cropping, this image is 41 million pixels wide and takes 168
/// GB.
#[tokio::test]
async fn image_resize_covers_large_box_from_one_line_image() {
    let input = json!({"image": png(10_000, 1), "width": 4096, "height": 4096, "fit": "cover",
        "format": "bmp"});
    let output = run("image-resize", input).await.unwrap();
    // The output is a BMP with 4 bytes per pixel, in base64.
    assert_eq!(output.as_str().unwrap().len() / 1_000_000, 89);
}

#[tokio::test]
async fn image_resize_over_memory_budget_is_rejected_with_numbers() {
    let input = json!({"image": png(10_000, 1), "width": 4096, "height": 4096, "fit": "fill"});
    let said = run("image-resize", input).await.unwrap_err();
    assert!(said.starts_with("the run would take 690 MiB of memory, and built-in models have 512"));
}

#[test]
fn image_encode_supports_every_pixel_type_and_format() {
    use image::{ColorType, DynamicImage, ImageFormat};
    let kinds = [
        ColorType::L8,
        ColorType::La8,
        ColorType::Rgb8,
        ColorType::Rgba8,
        ColorType::L16,
        ColorType::La16,
        ColorType::Rgb16,
        ColorType::Rgba16,
    ];
    use ImageFormat::{Bmp, Gif, Jpeg, Png, WebP};
    for (kind, format) in
        kinds.into_iter().flat_map(|k| [Png, Jpeg, WebP, Gif, Bmp].map(|f| (k, f)))
    {
        let uri = images::encode(&DynamicImage::new(3, 2, kind), format).unwrap();
        assert_eq!(decoded(&uri.into()), (3, 2, format), "{kind:?}");
    }
}

#[tokio::test]
async fn image_resize_rejects_invalid_images() {
    for (image, expect) in [
        ("data:image/png;base64,AAAA", "image: unknown format"),
        ("data:image/png,plain", "must be base64"),
        ("data:image/png;base64,!", "not valid base64"),
        ("http://127.0.0.1:1/a.png", "forbidden address"),
        ("file:///etc/passwd", "absolute http"),
        ("photo.png", "an absolute http or https URL, or a data: URI"),
    ] {
        let said = run("image-resize", json!({"image": image})).await.unwrap_err();
        assert!(said.contains(expect), "{said}");
    }
}

#[tokio::test]
async fn image_resize_accepts_equivalent_data_uris() {
    use image::{ColorType, DynamicImage, ImageFormat};
    let uri = images::encode(&DynamicImage::new(3, 2, ColorType::Rgb8), ImageFormat::Png).unwrap();
    let encoded = uri.strip_prefix("data:image/png;base64,").unwrap();
    let (start, end) = encoded.split_at(20);
    for image in [
        uri.clone(),
        format!("DATA:image/png;BASE64,{encoded}"),
        format!("data:image/png;charset=x; base64,{start}\r\n {end}\n"),
        format!("data:;base64,{}", encoded.trim_end_matches('=')),
    ] {
        run("image-resize", json!({"image": image, "width": 2})).await.unwrap();
    }
}

#[tokio::test]
async fn image_qr_draws_png_and_svg() {
    let output = run("image-qr", json!({"text": "https://example.com"})).await.unwrap();
    let (width, height, _) = decoded(&output);
    assert!(width >= 256 && width == height);
    let svg = run("image-qr", json!({"text": "a", "format": "svg"})).await.unwrap();
    assert!(svg.as_str().unwrap().starts_with("data:image/svg+xml;base64,"));
    let long = json!({"text": "x".repeat(2900), "correction": "high"});
    assert!(run("image-qr", long).await.unwrap_err().contains("does not fit"));
}

#[tokio::test]
async fn builtin_places_leave_room_for_other_organizations() {
    use futures_util::FutureExt;

    use orrery_domain::ids::OrganizationId;
    use orrery_runtime::{new_id, turns};

    let context = BuiltinContext::new(no_files(), Workers::new(PathBuf::new(), None));
    let [greedy, other]: [OrganizationId; 2] = [new_id(), new_id()];
    for (shared, most) in [(&context.places, RUNS_MAX), (&context.images, IMAGES_MAX)] {
        let take = |who| turns::on_behalf_of(who, shared.take(1)).now_or_never();
        let held: Vec<_> = std::iter::from_fn(|| take(greedy)).collect();
        assert_eq!(held.len(), most / 2);
        assert!(take(other).is_some());
    }
}
