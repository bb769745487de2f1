//! Uploads: announced and sent with PUT, or sent in a form. Nothing remains of a rejected upload.
//! Deleted and expired files are removed; the content of a file is removed with the last file that
//! refers to that content.

use std::fs;
use std::time::Duration;

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Answer, Service, until};

const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
const ABSENT: &str = "01990000-0000-7000-8000-000000000000";

async fn presign(service: &Service, body: Value) -> Answer {
    service.post("/v1/upload/presign", &body).send().await
}

/// Sends bytes to a URL issued by the service, without a key.
async fn put(service: &Service, url: &Value, content_type: &str, bytes: &[u8]) -> Answer {
    let path = url.as_str().unwrap().split_once("/v1").unwrap().1;
    let ask = service.ask(Role::Base, Method::PUT, &format!("/v1{path}"));
    ask.header("content-type", content_type).body(bytes.to_vec()).send().await
}

async fn fetch(service: &Service, url: &Value) -> Answer {
    let path = url.as_str().unwrap().split_once("/v1").unwrap().1;
    service.ask(Role::Base, Method::GET, &format!("/v1{path}")).send().await
}

/// Sends a form with these parts: the header lines after `form-data;`, and the content.
async fn form(service: &Service, parts: &[(&str, &str)]) -> Answer {
    let part = |(head, content): &(&str, &str)| {
        format!("--b0\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n")
    };
    let body = format!("{}--b0--\r\n", parts.iter().map(part).collect::<String>());
    let ask = service.ask(Role::Base, Method::POST, "/v1/files").key(&service.key);
    ask.header("content-type", "multipart/form-data; boundary=b0").body(body).send().await
}

/// Returns the names of the contents on disk, including incomplete ones.
fn contents(service: &Service) -> Vec<String> {
    let mut names = Vec::new();
    let Ok(shards) = fs::read_dir(service.config.data_dir.join("files")) else { return names };
    for shard in shards {
        let files = fs::read_dir(shard.unwrap().path()).unwrap();
        names.extend(files.map(|file| file.unwrap().file_name().into_string().unwrap()));
    }
    names
}

async fn usage(service: &Service) -> Value {
    service.get("/v1/files/usage").await.expect(200)
}

#[tokio::test]
async fn upload_to_presigned_url_becomes_a_file() {
    let service = Service::start().await;
    let body = json!({"content_type": "text/plain", "filename": "a b.txt", "size": 3,
        "sha256": ABC.to_uppercase(), "file_type": "text", "expires_in_seconds": 60});
    let signed = presign(&service, body).await.expect(200);
    let keys: Vec<_> = signed.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["id", "presigned_url", "public_url", "expires_at", "required_headers"]);
    assert_eq!(signed["required_headers"], json!({"Content-Type": "text/plain"}));
    let id = signed["id"].as_str().unwrap();
    let pending = service.get(&format!("/v1/files/{id}")).await.expect(200);
    assert_eq!((&pending["status"], &pending["size"]), (&json!("pending"), &json!(3)));
    fetch(&service, &signed["public_url"]).await.expect_error(404, "file not found");
    let url = &signed["presigned_url"];
    let wrong = put(&service, url, "text/plain; charset=utf-8", b"abc").await;
    wrong.expect_error(400, "Content-Type must be text/plain, as announced");
    let wrong = put(&service, url, "image/png", b"abc").await;
    wrong.expect_error(400, "Content-Type must be text/plain, as announced");
    let size = put(&service, url, "text/plain", b"abcd").await;
    size.expect_error(422, "the file was not stored: it has 4 bytes, not the 3 announced");
    let other = put(&service, url, "text/plain", b"abd").await;
    assert_eq!(other.status, 422);
    assert!(other.text.contains(&format!("not the {ABC} announced")), "{}", other.text);
    assert_eq!(contents(&service), [""; 0], "nothing stays of what is refused");
    let ready = put(&service, url, "text/plain", b"abc").await.expect(200);
    assert_eq!(ready["status"], "ready");
    assert_eq!(ready, service.get(&format!("/v1/files/{id}")).await.expect(200));
    let fields: Vec<_> = ready.as_object().unwrap().keys().collect();
    assert_eq!(
        fields,
        [
            "id",
            "filename",
            "content_type",
            "size",
            "sha256",
            "source",
            "object",
            "bytes",
            "created_at",
            "expires_at",
            "url",
            "status"
        ]
    );
    assert_eq!((&ready["sha256"], &ready["source"]), (&json!(ABC), &json!("upload")));
    put(&service, url, "text/plain", b"abc")
        .await
        .expect_error(409, "the upload is already complete");
    for url in [&ready["url"], &signed["public_url"]] {
        let content = fetch(&service, url).await;
        assert_eq!((content.status, content.text.as_str()), (200, "abc"));
        let disposition = "inline; filename=\"a b.txt\"; filename*=UTF-8''a%20b%2Etxt";
        assert_eq!(content.header("content-disposition"), disposition);
    }
    // The upload's token gives access only to the upload.
    let crossed = url.as_str().unwrap().split_once("?token=").unwrap().1;
    let crossed = format!("http://h/v1/files/{id}/content?token={crossed}");
    assert_eq!(fetch(&service, &json!(crossed)).await.status, 401);
    let service = service.restart().await;
    assert_eq!(fetch(&service, &ready["url"]).await.text, "abc");
    assert_eq!(usage(&service).await, json!({"count": 1, "bytes": 3}));
}

#[tokio::test]
async fn upload_content_type_is_compared_semantically() {
    let service = Service::start().await;
    for (announced, sent) in [
        ("image/png", "IMAGE/PNG"),
        ("text/plain; charset=utf-8", "text/plain;charset=utf-8"),
        ("text/plain;charset=UTF-8", "Text/Plain; Charset=\"utf-8\""),
    ] {
        let body = json!({"content_type": announced, "filename": "a", "size": 3, "sha256": ABC});
        let signed = presign(&service, body).await.expect(200);
        // Links sent by mail may get additional parameters.
        let url = format!("{}&utm_source=mail", signed["presigned_url"].as_str().unwrap());
        let file = put(&service, &json!(url), sent, b"abc").await.expect(200);
        assert_eq!(file["content_type"], announced);
        let content = format!("{}&fbclid=1&_=2", file["url"].as_str().unwrap());
        assert_eq!(fetch(&service, &json!(content)).await.text, "abc");
    }
}

#[tokio::test]
async fn upload_by_form_creates_a_file() {
    let service = Service::start().await;
    let file = "name=\"file\"; filename=\"ü.png\"\r\nContent-Type: image/png";
    let sent = form(&service, &[(file, "abc"), ("name=\"expires_in_seconds\"", "60")]).await;
    let sent = sent.expect(201);
    assert_eq!((&sent["filename"], &sent["content_type"]), (&json!("ü.png"), &json!("image/png")));
    assert_eq!(sent["sha256"], ABC);
    let plain = form(&service, &[("name=\"file\"", "abc")]).await.expect(201);
    let unknown = json!("application/octet-stream");
    assert_eq!((&plain["filename"], &plain["content_type"]), (&Value::Null, &unknown));
    assert_eq!(contents(&service).len(), 1, "equal bytes are stored once");
    assert_eq!(usage(&service).await, json!({"count": 2, "bytes": 6}));
    let name = "filename must be a plain name of 1 to 255 characters, without / and \\";
    let long = format!("name=\"file\"; filename=\"{}\"", "x".repeat(10_000));
    for head in [
        "name=\"file\"; filename=\"../../etc/passwd\"",
        "name=\"file\"; filename=\"..\"",
        "name=\"file\"; filename=\"a\u{0}b\"",
        long.as_str(),
    ] {
        let answer = form(&service, &[(head, "abc")]).await;
        assert_eq!(answer.status, 400, "{head} {}", answer.text);
    }
    for filename in ["", ".", "..", "a/b", "a\\b", "a\u{0}", "a\n", &"x".repeat(256)] {
        let answer = presign(&service, json!({"content_type": "a/b", "filename": filename})).await;
        answer.expect_error(400, name);
    }
    for (parts, message) in [
        (&[][..], "file is required"),
        (
            &[("name=\"other\"", "x")],
            "the form may have only the fields file, purpose and expires_in_seconds",
        ),
        (&[("name=\"file\"", "a"), ("name=\"file\"", "b")], "only one file can be sent at a time"),
        (
            &[("name=\"file\"", "a"), ("name=\"expires_in_seconds\"", "59")],
            "expires_in_seconds must be a whole number from 60 to 31536000",
        ),
    ] {
        form(&service, parts).await.expect_error(400, message);
    }
    let no_form = service.post("/v1/files", &json!({})).send().await;
    no_form.expect_error(400, "the body must be multipart/form-data with a field file");
    let ask = service.ask(Role::Base, Method::POST, "/v1/files").key(&service.key);
    let cut = ask.header("content-type", "multipart/form-data; boundary=b0");
    let cut = cut.body("--b0\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nabc").send();
    assert_eq!(cut.await.status, 400);
    until("end of what is refused", async || (contents(&service).len() == 1).then_some(())).await;
}

#[tokio::test]
async fn upload_file_name_stays_within_its_header() {
    let service = Service::start().await;
    for (name, expect) in [
        (
            "a\"; x=\"b.txt",
            "filename=\"a%22; x=%22b.txt\"; filename*=UTF-8''a%22%3B%20x%3D%22b%2Etxt",
        ),
        ("ü%41.png", "filename=\"_%2541.png\"; filename*=UTF-8''%C3%BC%2541%2Epng"),
        ("'*.txt", "filename=\"'*.txt\"; filename*=UTF-8''%27%2A%2Etxt"),
    ] {
        let body = json!({"content_type": "text/plain", "filename": name});
        let signed = presign(&service, body).await.expect(200);
        put(&service, &signed["presigned_url"], "text/plain", b"abc").await.expect(200);
        let content = fetch(&service, &signed["public_url"]).await;
        assert_eq!(content.header("content-disposition"), format!("inline; {expect}"));
    }
}

#[tokio::test]
async fn upload_for_url_returns_only_the_url() {
    let service = Service::start().await;
    let send = async |body: &str| {
        let ask = service.ask(Role::Base, Method::POST, "/api/v1/upload").key(&service.key);
        let ask = ask.header("content-type", "multipart/form-data; boundary=b0");
        ask.body(body.to_owned()).send().await
    };
    let head = "Content-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\
                Content-Type: text/plain";
    let sent = send(&format!("--b0\r\n{head}\r\n\r\nabc\r\n--b0--\r\n")).await.expect(200);
    let fields: Vec<_> = sent.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["url"]);
    let content = fetch(&service, &sent["url"]).await;
    assert_eq!((content.status, content.text.as_str()), (200, "abc"));
    assert_eq!(usage(&service).await, json!({"count": 1, "bytes": 3}));
    let listed = service.get("/v1/files").await.expect(200);
    assert_eq!(listed["files"][0]["filename"], "a.txt");
    let open = service.ask(Role::Base, Method::POST, "/api/v1/upload").send().await;
    assert_eq!(open.expect(401), json!({"error": "Invalid or missing API key"}));
    send("").await.expect(400);
    let bare = head.replace("\r\n", "\n");
    let bare = send(&format!("--b0\n{bare}\n\nabc\n--b0--\n")).await;
    let message = "the lines of the form must end in CRLF (RFC 2046), but the first line ends in \
                   LF";
    bare.expect_error(400, message);
    assert_eq!(usage(&service).await, json!({"count": 1, "bytes": 3}));
}

#[tokio::test]
async fn upload_form_may_encode_its_filename_but_not_its_file() {
    let service = Service::start().await;
    for (name, expect) in [
        ("filename*=UTF-8''b%C3%BCcher%20%26%20mehr.txt", "bücher & mehr.txt"),
        ("filename=\"a.txt\"; filename*=utf-8'de'%E6%97%A5.txt", "日.txt"),
        ("filename=\"a.txt\"", "a.txt"),
    ] {
        let sent = form(&service, &[(&format!("name=\"file\"; {name}"), "x")]).await;
        assert_eq!(sent.expect(201)["filename"], expect, "{name}");
    }
    let outside = "name=\"file\"; filename*=UTF-8''..%2Fa";
    form(&service, &[(outside, "x")]).await.expect(400);
    let head = "name=\"file\"; filename=\"a\"\r\nContent-Transfer-Encoding: ";
    let message = "the file has a Content-Transfer-Encoding: send its bytes without one";
    for encoding in ["base64", "quoted-printable"] {
        form(&service, &[(&format!("{head}{encoding}"), "eA==")]).await.expect_error(400, message);
    }
    form(&service, &[(&format!("{head}binary"), "x")]).await.expect(201);
}

#[tokio::test]
async fn file_delete_removes_blob_with_last_reference() {
    let service = Service::start().await;
    let one = form(&service, &[("name=\"file\"", "abc")]).await.expect(201);
    let two = form(&service, &[("name=\"file\"", "abc")]).await.expect(201);
    let delete = async |id: &Value, key: &str| {
        let path = format!("/v1/files/{}", id.as_str().unwrap());
        service.ask(Role::Base, Method::DELETE, &path).key(key).send().await
    };
    delete(&one["id"], &service.other_key).await.expect_error(404, "file not found");
    delete(&json!(ABSENT), &service.key).await.expect_error(404, "file not found");
    let no_id = delete(&json!("17"), &service.key).await;
    no_id.expect_error(400, "the file id must be a UUID");
    for _ in 0..2 {
        assert_eq!(delete(&one["id"], &service.key).await.status, 204);
    }
    fetch(&service, &one["url"]).await.expect_error(404, "file not found");
    assert_eq!(fetch(&service, &two["url"]).await.text, "abc", "the other file has the bytes");
    assert_eq!(usage(&service).await, json!({"count": 1, "bytes": 3}));
    let listed = service.get("/v1/files").await.expect(200);
    assert_eq!(listed, json!({"files": [two], "has_more": false, "next_cursor": null}));
    delete(&two["id"], &service.key).await;
    assert_eq!(contents(&service), [""; 0]);
    // Delete an announced upload that is no longer needed.
    let signed = presign(&service, json!({"content_type": "a/b"})).await.expect(200);
    assert_eq!(delete(&signed["id"], &service.key).await.status, 204);
    let late = put(&service, &signed["presigned_url"], "a/b", b"abc").await;
    late.expect_error(410, "the upload URL has expired");
}

#[tokio::test]
async fn file_list_continues_after_cursor() {
    let service = Service::start().await;
    let mut ids = Vec::new();
    for number in 0..5 {
        let sent = form(&service, &[("name=\"file\"", &number.to_string())]).await.expect(201);
        ids.push(sent["id"].clone());
    }
    ids.reverse();
    let mut seen = Vec::new();
    let mut path = "/v1/files?limit=2".to_owned();
    loop {
        let page = service.get(&path).await.expect(200);
        seen.extend(page["files"].as_array().unwrap().iter().map(|file| file["id"].clone()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        assert_eq!(page["has_more"], true);
        path = format!("/v1/files?limit=2&cursor={cursor}");
        let wrong = format!("/v1/files?limit=3&cursor={cursor}");
        service.get(&wrong).await.expect_error(400, "invalid cursor");
        // A cursor from another list is invalid for this one.
        let wrong = format!("/v2/executions?limit=2&cursor={cursor}");
        service.get(&wrong).await.expect_error(400, "invalid cursor");
    }
    assert_eq!(seen, ids);
}

#[tokio::test]
async fn upload_limits_and_quotas_are_enforced() {
    let lines = "[files]\nmax_bytes = 10\nquota_bytes = 15\n";
    let service = Service::configured(lines).await;
    let large = presign(&service, json!({"content_type": "a/b", "size": 11})).await;
    large.expect_error(413, "the file is larger than 10 bytes");
    let signed = presign(&service, json!({"content_type": "a/b"})).await.expect(200);
    let sent = put(&service, &signed["presigned_url"], "a/b", &[0; 11]).await;
    sent.expect_error(413, "the file is larger than 10 bytes");
    // If the announced size is too large, the service rejects the upload before any bytes arrive.
    let path = signed["presigned_url"].as_str().unwrap().split_once("/v1").unwrap().1;
    let head = format!(
        "PUT /v1{path} HTTP/1.1\r\nHost: h\r\nContent-Type: a/b\r\nContent-Length: 100000\r\n\r\n"
    );
    let answer = service.raw(head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    form(&service, &[("name=\"file\"", "01234567890")])
        .await
        .expect_error(413, "the file is larger than 10 bytes");
    form(&service, &[("name=\"file\"", "0123456789")]).await.expect(201);
    let over = form(&service, &[("name=\"file\"", "012345")]).await;
    assert_eq!(over.status, 413);
    assert_eq!(over.json()["details"], json!({"quota_bytes": 15, "used_bytes": 10}));
    assert_eq!(presign(&service, json!({"content_type": "a/b", "size": 6})).await.status, 413);
    put(&service, &signed["presigned_url"], "a/b", b"01234").await.expect(200);
    assert_eq!(usage(&service).await, json!({"count": 2, "bytes": 15}));
    assert_eq!(contents(&service).len(), 2);
    for (body, message) in [
        (json!({}), "content_type is required"),
        (json!({"content_type": "png"}), "content_type must be a type such as image/png"),
        (json!({"content_type": "a/b", "size": -1}), "size must be a whole number, 0 or more"),
        (json!({"content_type": "a/b", "sha256": "x"}), "sha256 must have 64 hexadecimal digits"),
    ] {
        presign(&service, body).await.expect_error(400, message);
    }
    put(&service, &json!(format!("h/v1/upload/{ABSENT}")), "a/b", b"").await.expect(401);
}

/// One client announces a smaller size than it sends, and another disconnects.
#[tokio::test]
async fn upload_that_breaks_off_leaves_nothing() {
    let service = Service::start().await;
    let signed = presign(&service, json!({"content_type": "a/b"})).await.expect(200);
    let path = signed["presigned_url"].as_str().unwrap().split_once("/v1").unwrap().1;
    let mut stream = tokio::net::TcpStream::connect(service.address(Role::Base)).await.unwrap();
    let head = format!(
        "PUT /v1{path} HTTP/1.1\r\nHost: h\r\nContent-Type: a/b\r\nContent-Length: 1000\r\n\r\nabc"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    until("upload on its way", async || (contents(&service).len() == 1).then_some(())).await;
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _closed = stream.read_to_end(&mut answer).await;
    drop(stream);
    until("end of the upload", async || contents(&service).is_empty().then_some(())).await;
    put(&service, &signed["presigned_url"], "a/b", b"abc").await.expect(200);
    // A slow upload does not delay others, and the cleanup at a start does not remove its content.
    let mut slow = service.running.services.files.receive(None).await.unwrap();
    slow.write(b"abc").await.unwrap();
    let files = &service.running.services.files;
    tokio::time::timeout(Duration::from_secs(60), files.remove_expired()).await.unwrap().unwrap();
    form(&service, &[("name=\"file\"", "abc")]).await.expect(201);
    drop(slow);
    until("end of the slow one", async || (contents(&service).len() == 1).then_some(())).await;
}
