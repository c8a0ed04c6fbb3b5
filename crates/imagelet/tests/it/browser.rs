//! The dashboard in a real browser: geometry, contrast, console, keyboard, live pulls, a token.

use std::{fs, net::TcpStream, os::unix::fs::PermissionsExt as _, process::Command, time::Duration};

use crate::{
    fake_registry::FakeRegistry,
    images::{Image, Layer},
    ports::Port,
    program::{Daemon, run, write_store_config},
    source::repository,
    testbed::{scratch, wait_until},
};

const TOKEN: &str = "a-token-of-a-test-with-40-characters-000";

/// A daemon with images, decisions and a pull under way is walked through; with a token in the address.
fn assert_nothing_is_wrong(token: Option<&str>) {
    let (folder, port, registry) = (scratch(), Port::choose(), FakeRegistry::start());
    let config = write_store_config(folder.path(), "");
    let mut http = format!("address: \"{}\"", port.address());
    if let Some(token) = token {
        let file = folder.path().join("token");
        fs::write(&file, token).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        http = format!("{http}, tokenFile: {}", file.display());
    }
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}http: {{{http}}}\n")).unwrap();
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--config", &config, "--store", store.to_str().unwrap()]);
    wait_until("the HTTP listener", || TcpStream::connect(port.address()).is_ok());
    let mut names = Vec::new();
    for number in 1..=12_usize {
        let base = Layer::gzip().file("base", vec![b'b'; 40_000], 0o644);
        let own = Layer::gzip().file("own", format!("{number} ").repeat(30_000 / number).into_bytes(), 0o644);
        let name = registry.put(
            &format!("team-{}/a-service-with-a-long-name-{number}:v1.{number}", number % 3),
            &Image::oci(&[base, own]),
        );
        daemon.run(["pull", &name]).ok();
        names.push(name);
    }
    daemon.run(["pin", &names[3]]).ok();
    daemon.run(["rm", &names[11]]).ok();
    daemon.run(["pull", "127.0.0.1:1/away/<b>bold</b>:v1"]);
    daemon.run(["pull", "127.0.0.1:1/away/app:v1"]).refused(&[]);
    // It takes longer than the walk, and is never silent.
    let slow = Image::marked("held", 16_000_000);
    let name = registry.put("held:v1", &slow);
    registry.spoil("held", &slow.layers[0].digest, |answer| answer.pause = Duration::from_secs(1));
    let mut pull = daemon.command().args(["pull", "-q", &name]).spawn().unwrap();
    wait_until("the pull to begin", || registry.sent("held", &slow.layers[0].digest) > 0);
    // It ends the browser when it is ended.
    let mut walk = Command::new("timeout");
    walk.args(["100", "python3"])
        .arg(repository().join("tests/dashboard.py"))
        .arg(format!("http://{}", port.address()))
        .arg(&names[0]);
    if let Some(token) = token {
        walk.args(["--token", token]);
    }
    if let Some(folder) = std::env::var_os("IMAGELET_TEST_SCREENSHOTS") {
        walk.arg("--screenshots").arg(folder);
    }
    let walked = run(&mut walk);
    assert_eq!((walked.code, walked.stdout.as_str()), (0, "nothing is wrong\n"), "{}", walked.stderr);
    pull.kill().unwrap();
    pull.wait().unwrap();
}

#[test]
fn the_dashboard_fits_desk_and_phone_in_light_and_dark_and_works_by_mouse_and_keyboard() {
    assert_nothing_is_wrong(None);
}

#[test]
fn behind_a_token_the_dashboard_works_by_the_browsers_own_prompt() {
    assert_nothing_is_wrong(Some(TOKEN));
}
