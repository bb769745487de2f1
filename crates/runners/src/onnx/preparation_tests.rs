//! The tables of manifests, and the ranking of labels.

use super::*;
use crate::onnx::element::Element;
use orrery_config::reader::{Reader, Section};

fn tensor(element: Element, shape: &[usize]) -> Tensor {
    let length = |length: &usize| match length {
        0 => Dimension::Any,
        length => Dimension::Fixed(*length),
    };
    let shape = shape.iter().map(length).collect();
    Tensor { name: "x".to_owned(), element, shape: Some(shape) }
}

/// Parses a table `inputs`.
fn parsed(text: &str) -> Result<Named<Preparation>, String> {
    let reader = Reader::new(text);
    let document = reader.document();
    let read = Section::root(&reader, &document, |root| root.optional("inputs", inputs));
    drop(document);
    let (errors, _known) = reader.finish();
    read.ok_or_else(|| errors.into_iter().map(|error| error.message).collect())
}

fn image(more: &str) -> Result<Preparation, String> {
    parsed(&format!("[inputs.x]\nkind = 'image'\n{more}\n"))
        .map(|mut inputs| inputs.remove("x").unwrap())
}

#[test]
fn onnx_image_is_completed_by_the_declared_shape() {
    let of = |more: &str, element, shape: &[usize]| match image(more)
        .unwrap()
        .completed(&tensor(element, shape))
        .unwrap()
    {
        Preparation::Image(image) => (image.size, image.color.unwrap(), image.scale, image.rank),
        Preparation::Audio(_) => unreachable!("an image"),
    };
    let scale = Some(1.0 / 255.0);
    let float = Element::Float32;
    assert_eq!(of("", float, &[0, 3, 4, 5]), (Some([5, 4]), Color::Rgb, scale, 4));
    assert_eq!(of("layout = 'nhwc'", float, &[0, 4, 5, 1]), (Some([5, 4]), Color::Gray, scale, 4));
    assert_eq!(of("size = [7, 8]", float, &[3, 0, 0]), (Some([7, 8]), Color::Rgb, scale, 3));
    assert_eq!(of("color = 'bgr'", Element::Uint8, &[0; 4]), (None, Color::Bgr, Some(1.0), 4));
}

#[test]
fn onnx_image_must_fit_the_input() {
    for (more, shape, says) in [
        ("", vec![1, 2], "takes float32 [1, 2], not an image"),
        ("", vec![1, 2, 4, 4], "not an image"),
        ("color = 'gray'", vec![1, 3, 4, 4], "not an image"),
        ("layout = 'nhwc'", vec![1, 3, 4, 4], "not an image"),
        ("mean = [1.0, 2.0]", vec![1, 3, 4, 4], "`mean` has 2 numbers for 3 channels"),
        ("", vec![1, 3, 5000, 4], "at most 4096 pixels"),
    ] {
        let error = image(more).unwrap().completed(&tensor(Element::Float32, &shape)).unwrap_err();
        assert!(error.contains(says), "{error}, not {says}");
    }
    let audio = parsed("[inputs.x]\nkind = 'audio'\nsample_rate = 16000\n").unwrap();
    let error = audio["x"].completed(&tensor(Element::Int64, &[1, 0])).unwrap_err();
    assert!(error.contains("not the samples of an audio file"), "{error}");
}

#[test]
fn onnx_input_table_is_checked() {
    for (text, says) in [
        ("[inputs.x]\nkind = 'video'", "unknown variant `video`"),
        ("[inputs.x]\nkind = 'image'\nsise = [1, 1]", "unknown field `sise`"),
        ("[inputs.x]\nkind = 'image'\nrank = 3", "unknown field `rank`"),
        ("[inputs.x]\nkind = 'image'\nsize = [0, 1]", "`size` has two numbers from 1 to 4096"),
        ("[inputs.x]\nkind = 'image'\nstd = [0.0]", "`std` must not be 0"),
        ("[inputs.x]\nkind = 'image'\nmean = [1, 2, 3, 4, 5]", "`mean` has one number"),
        ("[inputs.x]\nkind = 'audio'", "missing field `sample_rate`"),
        ("[inputs.x]\nkind = 'audio'\nsample_rate = 1", "must be from 1000 to 192000"),
        ("[inputs]\nx = 'image'", "expected a table"),
    ] {
        let error = parsed(text).unwrap_err();
        assert!(error.contains(says), "{error}, not {says}");
    }
}

#[test]
fn onnx_labels_are_ranked_per_row() {
    let labels =
        |softmax| Labels { labels: ["a", "b", "c"].map(str::to_owned).to_vec(), top: 2, softmax };
    let one = labels(false).ranked(&[1, 3], &[0.5, -1.0, 2.0]).unwrap();
    assert_eq!(one, json!([{"label": "c", "score": 2.0}, {"label": "a", "score": 0.5}]));
    let two = labels(true).ranked(&[2, 3], &[0.0, 0.0, 0.0, 1000.0, 0.0, 0.0]).unwrap();
    assert_eq!(two[0][0], json!({"label": "a", "score": 1.0 / 3.0}));
    assert_eq!(two[1][0], json!({"label": "a", "score": 1.0}));
    let wrong = labels(false).ranked(&[1, 2], &[0.0, 0.0]).unwrap_err();
    assert_eq!(wrong, "has the shape [1, 2], but there are 3 labels");
}

#[test]
fn onnx_labels_come_from_a_list_or_a_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("labels.txt"), "cat\ndog \n").unwrap();
    let of = |text: &str| {
        let written = serde_json::from_value(toml::from_str(text).unwrap()).unwrap();
        labels(written, folder.path())
    };
    let file = of("labels = 'labels.txt'\nsoftmax = true").unwrap();
    assert_eq!((file.labels, file.top, file.softmax), (vec!["cat".into(), "dog".into()], 2, true));
    assert_eq!(of("labels = ['a', 'b']\ntop = 1").unwrap().top, 1);
    for (text, says) in [
        ("labels = 'absent.txt'", "absent.txt"),
        ("labels = []", "must be 1 to 100000 labels"),
        ("labels = ['a']\ntop = 0", "`top` must be at least 1"),
    ] {
        let error = of(text).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}
