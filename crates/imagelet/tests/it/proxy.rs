//! A pull through a real proxy.

use std::{fs, net::TcpStream, path::Path, process::Command};

use crate::{
    images::Image,
    ports::Port,
    program::{Outcome, program, run},
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

#[test]
fn a_pull_uses_the_proxy_of_the_environment_and_names_it_without_its_password() {
    let (registry, folder) = (Registry::start(), scratch());
    let image = Image::busybox("proxied");
    registry.push("proxied:v1", &image);
    let (proxy, port) = start_proxy(folder.path());
    // The registry under a name that is no loopback host: those are never reached by a proxy.
    let host = registry.address().replace("127.0.0.1", "127.1");
    let name = format!("{host}/proxied:v1");
    let own = folder.path().join("certs.d").join(&host);
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("hosts.toml"), format!("server = \"http://{host}\"\n")).unwrap();
    let config = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nregistry: {{configPath: {}}}\n",
        folder.path().join("certs.d").display()
    );
    let file = folder.path().join("config.yaml");
    fs::write(&file, config).unwrap();
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

    pull("refused", &[("HTTP_PROXY", url(""))]).refused(&[&url(""), "407", "hint: "]);
    // This proxy answers a wrong password like a registry would.
    let stderr = pull("refused", &[("HTTP_PROXY", url("node:wrong-83@"))]).refused(&[&host]);
    assert!(!stderr.contains("wrong-83"), "{stderr}");
}
