//! A pull through a real proxy.

use std::{fs, net::TcpStream, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use rustix::process::Signal;

use crate::{
    images::Image,
    ports::Port,
    program::{Daemon, Outcome, program, run},
    testbed::{Part, Registry, scratch, wait_until},
};

const LOGIN: &str = "node:open-sesame-47";

/// `tinyproxy` from Debian, behind a password.
fn start_proxy(folder: &Path) -> (Part, Port) {
    let port = Port::choose();
    let (user, password) = LOGIN.split_once(':').unwrap();
    let config = format!("Port {port}\nListen 127.0.0.1\nBasicAuth {user} {password}\nTimeout 60\nLogLevel Connect\n");
    let file = folder.join("tinyproxy.conf");
    fs::write(&file, config).unwrap();
    let mut command = Command::new("tinyproxy");
    command.arg("-d").arg("-c").arg(&file);
    let part = Part::start(&mut command, "tinyproxy-bin", folder.join("tinyproxy.log"));
    wait_until("tinyproxy", || TcpStream::connect(port.address()).is_ok());
    (part, port)
}

/// An image of the registry, and the registry's address as a name that is no loopback host: those are never reached by a
/// proxy. `certs.d` in the folder knows it.
fn offered(registry: &Registry, folder: &Path) -> (Image, String) {
    let image = Image::busybox("proxied");
    registry.push("proxied:v1", &image);
    let host = registry.address().replace("127.0.0.1", "127.1");
    let own = folder.join("certs.d").join(&host);
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("hosts.toml"), format!("server = \"http://{host}\"\n")).unwrap();
    (image, host)
}

#[test]
fn a_pull_uses_the_proxy_of_the_environment_and_names_it_without_its_password() {
    let (folder, registry) = (scratch(), Registry::start());
    let (proxy, port) = start_proxy(folder.path());
    let (image, host) = offered(&registry, folder.path());
    let name = format!("{host}/proxied:v1");
    let config = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nregistry: {{configPath: {}}}\n",
        folder.path().join("certs.d").display()
    );
    let file = folder.path().join("config.yaml");
    fs::write(&file, &config).unwrap();
    let pull = |store: &str, variables: &[(&str, String)]| -> Outcome {
        let mut command = program();
        command.env("IMAGELET_CONFIG", &file).envs(variables.iter().cloned());
        run(command.arg("--store").arg(folder.path().join(store)).args(["pull", "-q", &name]))
    };
    let url = |login: &str| format!("http://{login}{}", port.address());

    let login = format!("{LOGIN}@");
    assert_eq!(pull("proxied", &[("http_proxy", url(&login))]).ok().trim(), image.id());
    let by_proxy = proxy.log().matches("/v2/proxied/").count();
    assert!(by_proxy >= 3, "manifest, configuration and layer go by the proxy\n{}", proxy.log());

    let variables = [("HTTP_PROXY", url(&login)), ("NO_PROXY", "127.1".to_owned())];
    assert_eq!(pull("direct", &variables).ok().trim(), image.id());
    assert_eq!(proxy.log().matches("/v2/proxied/").count(), by_proxy, "{}", proxy.log());

    // The rules of the configuration come before the environment.
    let with_rules = |rules: &str| fs::write(&file, config.replace('}', &format!(", proxies: {rules}}}"))).unwrap();
    with_rules("[{hosts: ['127.1'], proxy: none}]");
    assert_eq!(pull("ruled-out", &[("HTTP_PROXY", url(&login))]).ok().trim(), image.id());
    assert_eq!(proxy.log().matches("/v2/proxied/").count(), by_proxy, "{}", proxy.log());
    with_rules(&format!("[{{hosts: ['127.1'], proxy: '{}'}}]", url(&login)));
    assert_eq!(pull("ruled", &[("HTTP_PROXY", url("node:wrong-83@"))]).ok().trim(), image.id());
    assert!(proxy.log().matches("/v2/proxied/").count() > by_proxy, "{}", proxy.log());
    let (password, before) = (folder.path().join("password"), proxy.log().matches("/v2/proxied/").count());
    fs::write(&password, format!("{}\n", LOGIN.split_once(':').unwrap().1)).unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let of_file = format!("proxy: '{}', passwordFile: {}", url("node@"), password.display());
    with_rules(&format!("[{{hosts: ['127.1'], {of_file}}}]"));
    assert_eq!(pull("by-file", &[]).ok().trim(), image.id());
    assert!(proxy.log().matches("/v2/proxied/").count() > before, "{}", proxy.log());
    let mut show = program();
    let shown = run(show.args(["config", "show", "--config"]).arg(&file)).ok();
    assert!(shown.contains(&url("")) && !shown.contains(LOGIN), "{shown}");
    for (rules, words) in [
        ("[{hosts: [a.example], proxy: 'node:open-sesame-47@p'}]", "registry.proxies[0]: its proxy cannot be used"),
        ("'http://node:open-sesame-47@p'", "registry.proxies: invalid type"),
        ("['http://node:open-sesame-47@p']", "registry.proxies[0]: invalid type"),
        ("[{hosts: ['node:open-sesame-47@a/b'], proxy: none}]", "`a/b` is no host"),
        ("[{proxy: none}]", "registry.proxies[0]: it names no hosts"),
        ("[{hosts: [a], proxi: none}]", "proxi"),
    ] {
        with_rules(rules);
        let mut check = program();
        let stderr = run(check.args(["config", "check"]).arg(&file)).refused(&[words, "config.yaml"]);
        assert!(!stderr.contains("open-sesame"), "{stderr}");
    }
    fs::write(&file, &config).unwrap();

    pull("refused", &[("HTTP_PROXY", url(""))]).refused(&[&url(""), "407", "hint: "]);
    // This proxy answers a wrong password like a registry would.
    let stderr = pull("refused", &[("HTTP_PROXY", url("node:wrong-83@"))]).refused(&[&host]);
    assert!(!stderr.contains("wrong-83"), "{stderr}");
}

#[test]
fn changed_proxies_hold_without_a_restart() {
    let (folder, registry) = (scratch(), Registry::start());
    let (proxy, port) = start_proxy(folder.path());
    let (_, host) = offered(&registry, folder.path());
    let name = format!("{host}/proxied:v1");
    let (config, store) = (folder.path().join("config.yaml"), folder.path().join("store"));
    let write = |proxy: &str| {
        let certs = folder.path().join("certs.d");
        let proxies = format!("[{{hosts: ['*'], proxy: '{proxy}'}}]");
        fs::write(&config, format!("registry: {{configPath: {}, proxies: {proxies}}}\n", certs.display())).unwrap();
    };
    write("none");
    let arguments = ["--config", config.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let daemon = Daemon::start(folder.path(), arguments);
    let pull = || daemon.run(["pull", "-q", "--policy", "Always", &name]).ok();
    pull();
    assert!(!proxy.log().contains("/v2/proxied/"), "{}", proxy.log());
    write(&format!("http://{LOGIN}@{}", port.address()));
    daemon.part.signal(Signal::HUP);
    wait_until("the reload", || daemon.part.log().contains("configuration reloaded"));
    pull();
    assert!(proxy.log().contains("/v2/proxied/"), "{}", proxy.log());
    let log = daemon.part.log();
    assert!(!log.contains("open-sesame") && !log.contains("take effect with the next start"), "{log}");
}
