//! Expired files, with a clock that the test controls.

use std::io::{BufReader, Write as _};
use std::net::TcpStream;

use crate::support::http::Message;
use crate::support::service::Setup;

/// Opens a link without a key.
fn open(setup: &Setup, link: &str) -> Message {
    let path = link.split_once("/v1").unwrap().1;
    let mut stream = TcpStream::connect(setup.base()).unwrap();
    let host = setup.base();
    write!(stream, "GET /v1{path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    Message::read(&mut BufReader::new(stream)).unwrap()
}

#[test]
fn expired_file_behaves_like_a_deleted_one() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    let key = setup.create_key();
    let part = |head: &str, content: &str| {
        format!("--b0\r\nContent-Disposition: form-data; name={head}\r\n\r\n{content}\r\n")
    };
    let form = part("\"file\"; filename=\"a.txt\"", "abc") + &part("\"expires_in_seconds\"", "60");
    let kind = ("Content-Type", "multipart/form-data; boundary=b0");
    let made = setup.client(&key).post("/v1/files", &[kind], &format!("{form}--b0--\r\n")).unwrap();
    assert_eq!(made.status(), 201, "{}", made.text());
    let made = made.json();
    let (id, link) = (made["id"].as_str().unwrap(), made["url"].as_str().unwrap());
    assert_eq!(open(&setup, link).text(), "abc");
    setup.shift_clock(61);
    let gone = open(&setup, link);
    assert_eq!((gone.status(), gone.json()["error"].as_str()), (404, Some("file not found")));
    let get = |path: &str| setup.client(&key).get(path).unwrap();
    assert_eq!(get(&format!("/v1/files/{id}")).status(), 404);
    assert_eq!(get(&format!("/v1/files/{id}/content")).status(), 404);
    assert_eq!(get("/v1/files").json()["files"], serde_json::json!([]));
    assert_eq!(get("/v1/files/usage").json(), serde_json::json!({"count": 0, "bytes": 0}));
    // An unsigned link does not reveal whether a file existed.
    assert_eq!(open(&setup, &format!("{link}x")).status(), 401);
}
