//! Billing when the service dies: many small concurrent charges, which must be exact to the
//! micro-dollar.

use serde_json::json;

use crate::support::eventually;
use crate::support::service::Setup;
use crate::verdict;

const CHARGES: usize = 200;

#[test]
#[ignore = "needs python3: run tests/run"]
fn balance_stays_exact_after_kill_among_small_charges() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let script = "import sys, json\nfor line in sys.stdin:\n \
                  print(json.dumps({'id': json.loads(line)['id'], 'output': 1}), flush=True)\n";
    let script_file = folder.path().join("worker.py");
    std::fs::write(&script_file, script).unwrap();
    let manifest = format!(
        "slug = 'cent'\noutput_type = 'number'\nconcurrency = 4\n\
         [cost]\ntype = 'fixed'\namount = 0.000001\n\
         [runner]\ntype = 'command'\ncommand = ['python3', {script_file:?}]\n"
    );
    setup.add_model("cent", &manifest);
    let service = setup.start();
    let key = setup.create_key();
    setup.run(&["balance", "top-up", "--amount", "1"]);
    let body = json!({"model": "cent", "version": "1", "input": {}}).to_string();
    let ids: Vec<String> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CHARGES)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = setup.client(&key);
                    let made = client.post("/v1/prediction", &[], &body).unwrap().json();
                    made["predictionID"].as_str().unwrap().to_owned()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let micros = |setup: &Setup| 1_000_000 - verdict::balance(&mut setup.client(&key));
    eventually("some have been charged", || (micros(&setup) > 0).then_some(()));
    service.kill();
    let service = setup.start();
    verdict::settle(&setup, &key, &ids);
    assert_eq!(micros(&setup), i64::try_from(CHARGES).unwrap());
    let ledger: serde_json::Value =
        serde_json::from_str(&setup.run(&["balance", "ledger", "--limit", "1000", "--json"]))
            .unwrap();
    assert_eq!(ledger["entries"].as_array().unwrap().len(), CHARGES + 1);
    let used = verdict::usage(&mut setup.client(&key));
    assert_eq!(used, (CHARGES as u64, 200), "each charge is counted once");
    drop(service);
}
