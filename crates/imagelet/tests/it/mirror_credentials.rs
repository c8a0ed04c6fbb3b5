//! A private registry behind a mirror that wants its own password: each host is shown its own credential, and no other.

use std::{fs, path::PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use imagelet_core::error::RuntimeErrorKind;
use serde_json::{Value, json};

use crate::{
    images::Image,
    program::{Daemon, Outcome, program, run},
    relay::{by, connect, in_runtime, pull, request},
    testbed::{Registry, scratch},
};

const USER: &str = "robot";
const OF_REGISTRY: &str = "zebra-lantern-42";
const OF_MIRROR: &str = "open-sesame-23";

/// The configuration of registries: containerd's or that of Podman and CRI-O.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    HostsToml,
    RegistriesConf,
}

/// A registry and its mirror, each with a password of its own, and a node.
struct Site {
    folder: tempfile::TempDir,
    registry: Registry,
    mirror: Registry,
}

fn entry(password: &str) -> Value {
    json!({ "auth": STANDARD.encode(format!("{USER}:{password}")) })
}

impl Site {
    fn new() -> Self {
        let start = |password: &str| Registry::start_with_login(&format!("{USER}:{password}"));
        Self { folder: scratch(), registry: start(OF_REGISTRY), mirror: start(OF_MIRROR) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A name at the registry; the mirror alone has the image.
    fn put(&self, name: &str) -> (String, Image) {
        let image = Image::marked(name, 1000);
        self.mirror.push(name, &image);
        (format!("{}/{name}", self.registry.address()), image)
    }

    fn logins(&self, entries: &[(&str, &str)]) {
        let entries = entries.iter().map(|(host, password)| ((*host).to_owned(), entry(password)));
        let document = json!({ "auths": entries.collect::<serde_json::Map<_, _>>() });
        fs::write(self.path("config.json"), document.to_string()).unwrap();
    }

    fn configure(&self, form: Form) -> String {
        let (registry, mirror) = (self.registry.address(), self.mirror.address());
        let path = if form == Form::HostsToml {
            let folder = self.path("certs.d").join(&registry);
            fs::create_dir_all(&folder).unwrap();
            let text = format!("server = \"http://{registry}\"\n[host.\"http://{mirror}\"]\n");
            fs::write(folder.join("hosts.toml"), text).unwrap();
            self.path("certs.d")
        } else {
            let text =
                format!("[[registry]]\nlocation = \"{registry}\"\n[[registry.mirror]]\nlocation = \"{mirror}\"\n");
            fs::write(self.path("registries.conf"), text).unwrap();
            self.path("registries.conf")
        };
        self.write_config(&path.display().to_string())
    }

    fn write_config(&self, registries: &str) -> String {
        let config = format!(
            "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\ngc: {{enabled: false}}\n\
             pulls: {{retryBudget: 2s}}\nregistry: {{configPath: '{registries}'}}\n"
        );
        fs::write(self.path("config.yaml"), config).unwrap();
        self.path("config.yaml").display().to_string()
    }

    /// `imagelet pull` without a daemon.
    fn command(&self, config: &str, options: &[&str]) -> Outcome {
        let store = tempfile::tempdir_in(self.folder.path()).unwrap();
        let mut command = program();
        command.env("IMAGELET_CONFIG", config).env("DOCKER_CONFIG", self.folder.path());
        run(command.arg("--store").arg(store.path().join("store")).args(["pull", "-q"]).args(options))
    }

    fn daemon(&self, config: &str) -> Daemon {
        let store = self.path("store").display().to_string();
        let variables = [("DOCKER_CONFIG", self.folder.path().to_str().unwrap())];
        Daemon::start_with(self.folder.path(), ["--config", config, "--store", &store], &variables)
    }

    fn ensure(&self, daemon: &Daemon, pod: &str, image: &str, secrets: &[(&str, &str)]) -> Outcome {
        let names = (0..secrets.len()).map(|number| format!("{{name: s{number}}}")).collect::<Vec<_>>().join(", ");
        let pod_text = format!(
            "kind: Pod\nmetadata: {{name: {pod}}}\nspec:\n  containers: [{{name: a, image: '{image}'}}]\n  imagePullSecrets: \
             [{names}]\n"
        );
        let secret = |(number, (host, password)): (usize, &(&str, &str))| {
            let document = json!({ "auths": { *host: entry(password) } }).to_string();
            format!(
                "---\nkind: Secret\nmetadata: {{name: s{number}, uid: u-{pod}-{number}}}\n\
                 type: kubernetes.io/dockerconfigjson\nstringData: {{.dockerconfigjson: '{document}'}}\n"
            )
        };
        let texts = std::iter::once(pod_text).chain(secrets.iter().enumerate().map(secret)).collect::<Vec<_>>();
        fs::write(self.path("pod.yaml"), texts.concat()).unwrap();
        daemon.run(["ensure", "-f", self.path("pod.yaml").to_str().unwrap()])
    }
}

#[test]
fn a_mirror_is_shown_its_own_entry_of_the_docker_configuration_to_commands_and_over_cri() {
    for form in [Form::HostsToml, Form::RegistriesConf] {
        let site = Site::new();
        let (name, image) = site.put("team/app:v1");
        let (registry, mirror) = (site.registry.address(), site.mirror.address());
        let config = site.configure(form);
        let creds = format!("{USER}:{OF_REGISTRY}");
        site.logins(&[(&registry, OF_REGISTRY)]);
        site.command(&config, &[&name]).refused(&[&mirror, "without a credential"]);
        site.logins(&[(&registry, OF_REGISTRY), (&mirror, OF_MIRROR)]);
        site.command(&config, &[&name]).ok();
        site.logins(&[(&mirror, OF_MIRROR)]);
        site.command(&config, &[&name]).ok();
        // The credential of the command is for the registry.
        site.command(&config, &["--creds", &creds, &name]).ok();
        let daemon = site.daemon(&config);
        in_runtime(async {
            let images = connect(&daemon).await;
            let of_kubelet = by(&name, USER, OF_REGISTRY);
            assert_eq!(pull(&images, &of_kubelet).await.unwrap(), image.id(), "{form:?}");
            assert_eq!(pull(&images, &request(&name)).await.unwrap(), image.id(), "{form:?}");
        });
        // What the mirror lacks comes from the registry, with the registry's credential.
        let own = Image::marked("own", 1000);
        let own_name = site.registry.push("team/own:v1", &own);
        in_runtime(async {
            let images = connect(&daemon).await;
            assert_eq!(pull(&images, &by(&own_name, USER, OF_REGISTRY)).await.unwrap(), own.id());
            let refused = pull(&images, &request(&own_name)).await.unwrap_err();
            assert_eq!(refused.kind(), RuntimeErrorKind::Denied, "{refused}");
        });
        let log = daemon.part.log();
        assert!(!log.contains(OF_REGISTRY) && !log.contains(OF_MIRROR), "{log}");
    }
}

#[test]
fn a_pull_secret_for_a_mirror_opens_it_to_its_pods_and_to_no_other() {
    let site = Site::new();
    let (name, _) = site.put("team/app:v1");
    let mirror = site.mirror.address();
    let daemon = site.daemon(&site.configure(Form::HostsToml));
    site.ensure(&daemon, "first", &name, &[]).refused(&["credential"]);
    site.ensure(&daemon, "first", &name, &[(&mirror, "wrong-word-1")]).refused(&["credential"]);
    site.ensure(&daemon, "first", &name, &[(&mirror, OF_MIRROR)]).ok();
    site.ensure(&daemon, "other", &name, &[]).refused(&["credential"]);
    site.ensure(&daemon, "other", &name, &[(&site.registry.address(), OF_REGISTRY)]).refused(&["credential"]);
    // The registries are away: a right that is on record counts.
    let site = Site { registry: Registry::start(), mirror: Registry::start(), ..site };
    site.ensure(&daemon, "first", &name, &[(&mirror, OF_MIRROR)]).ok();
    site.ensure(&daemon, "other", &name, &[]).refused(&[]);
}

#[test]
fn the_password_of_a_prefix_is_not_sent_to_its_location() {
    let site = Site::new();
    let conf = |location: &str| {
        let text = format!("[[registry]]\nprefix = \"prefix.example/team\"\nlocation = \"{location}/team\"\n");
        fs::write(site.path("registries.conf"), text).unwrap();
        site.write_config(&site.path("registries.conf").display().to_string())
    };
    let creds = format!("{USER}:{OF_REGISTRY}");
    let (name, private) = ("prefix.example/team/app:v1", site.mirror.address());
    site.put("team/app:v1");
    let config = conf(&private);
    for entries in [&[("prefix.example", OF_MIRROR)][..], &[("prefix.example/team", OF_MIRROR)]] {
        site.logins(entries);
        site.command(&config, &[name]).refused(&[&private, "without a credential"]);
        site.command(&config, &["--creds", &creds, name]).refused(&[&private, "without a credential"]);
    }
    site.logins(&[("prefix.example", OF_REGISTRY), (&private, OF_MIRROR)]);
    site.command(&config, &[name]).ok();
    site.command(&config, &["--creds", &creds, name]).ok();
}

#[test]
fn a_login_of_podman_opens_a_registry_to_commands() {
    let site = Site::new();
    let image = site.registry.push("team/app:v1", &Image::marked("app", 1000));
    let registry = site.registry.address();
    let config = site.write_config("/nonexistent");
    let document = json!({ "auths": { &registry: entry(OF_REGISTRY) } }).to_string();
    let pull = |variables: &[(&str, PathBuf)]| {
        let store = tempfile::tempdir_in(site.folder.path()).unwrap();
        let mut command = program();
        command.env("IMAGELET_CONFIG", &config).envs(variables.iter().map(|(name, value)| (name, value)));
        run(command.arg("--store").arg(store.path().join("store")).args(["pull", "-q", &image]))
    };
    for (place, variable, value) in [
        ("named.json", "REGISTRY_AUTH_FILE", "named.json"),
        ("run/containers/auth.json", "XDG_RUNTIME_DIR", "run"),
        ("config/containers/auth.json", "XDG_CONFIG_HOME", "config"),
        ("home/.config/containers/auth.json", "HOME", "home"),
    ] {
        let file = site.path(place);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        pull(&[(variable, site.path(value))]).refused(&["without a credential"]);
        fs::write(&file, &document).unwrap();
        pull(&[(variable, site.path(value))]).ok();
        // A login that is older stands behind it.
        site.logins(&[(&registry, "wrong-word-1")]);
        pull(&[(variable, site.path(value)), ("DOCKER_CONFIG", site.folder.path().to_owned())]).ok();
        fs::remove_file(&file).unwrap();
        fs::remove_file(site.path("config.json")).unwrap();
    }
    // As docker spells it: a URL with any path, or a path behind the host.
    for key in [format!("http://{registry}/v1/"), format!("https://{registry}/v1"), format!("{registry}/team/other")] {
        site.logins(&[(&key, OF_REGISTRY)]);
        pull(&[("DOCKER_CONFIG", site.folder.path().to_owned())]).ok();
    }
}
