//! Backups under load: taken from the running service, checked, restored elsewhere, started.

use std::fs;

use crate::support::service::Setup;
use crate::{Book, World, verdict};

#[test]
fn a_backup_under_load_is_a_whole_service_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let (mut world, service) = World::new(folder.path(), &folder.path().join("data"));
    let content = "the bytes of a file ".repeat(10_000);
    let form = format!(
        "--b0\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n{content}\r\n--b0--\r\n"
    );
    let form_type = [("Content-Type", "multipart/form-data; boundary=b0")];
    let mut client = world.setup.client(&world.key);
    let file = client.post("/v1/files", &form_type, &form).unwrap().json();
    let load = world.load();
    world.wait_for_a_random_moment();
    let before = Book::ids(&world.book);
    let backup = folder.path().join("one.backup");
    let backup = backup.to_str().unwrap();
    world.setup.run(&["backup", backup]);
    load.end();
    Book::assert_none_refused(&world.book);
    service.kill();
    assert!(world.setup.run(&["verify", backup]).contains("files"));

    let data = folder.path().join("elsewhere/data");
    world.setup.run(&["restore", backup, "--into", data.to_str().unwrap()]);
    let setup = Setup::new(folder.path(), &data, "");
    setup.run(&["verify"]);
    let service = setup.start();
    let ends = verdict::settle(&setup, &world.key, &before);
    world.book.lock().unwrap().acknowledged.retain(|id, _| ends.contains_key(id));
    // What had not ended at that moment ends again: its webhook is another one then.
    verdict::check_ends(&world.book, &ends);
    Book::repeat_keys(&world.book, &mut setup.client(&world.key));
    let path = format!("/v1/files/{}/content", file["id"].as_str().unwrap());
    assert_eq!(setup.client(&world.key).get(&path).unwrap().text(), content);

    // A restore into a folder that holds one is refused, and so is one from a file that was cut.
    let refused = setup.fail(&["restore", backup]);
    assert!(refused.contains("holds payloads already") || refused.contains("already"), "{refused}");
    let whole = fs::read(backup).unwrap();
    let cut = folder.path().join("cut.backup");
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let nowhere = folder.path().join("nowhere");
    let refused =
        setup.fail(&["restore", cut.to_str().unwrap(), "--into", nowhere.to_str().unwrap()]);
    assert!(refused.contains("this is no whole backup"), "{refused}");
    assert!(!nowhere.exists());

    // What runs has its store to itself; once it has stopped, the store is written anew.
    for command in ["verify", "compact"] {
        assert!(setup.fail(&[command]).contains("in use"), "{command}");
    }
    service.kill();
    println!("{}", setup.run(&["compact"]));
    setup.run(&["verify"]);
    let _service = setup.start();
    assert!(verdict::settle(&setup, &world.key, &before) == ends, "the same as before");
}
