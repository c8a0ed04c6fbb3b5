//! The environment variables of the process; other files read variables only through the functions here.

use std::{ffi::OsStr, path::PathBuf};

use imagelet_core::credentials::{Secret, Variables};
use imagelet_oci::{Machine, ProxyConfig};

pub(crate) const SYSTEM_SOCKET: &str = "/run/imagelet/imagelet.sock";
const SYSTEM_STORE: &str = "/var/lib/imagelet";

const OURS_ALONE: [&str; 8] = [
    "IMAGELET_CREDS",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "GLIBC_TUNABLES",
];

/// The environment variables that imagelet reads. A variable that names a directory by a relative path is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    pub root: bool,
    pub folders: UserFolders,
    pub logins: LoginVariables,
    /// `IMAGELET_CONFIG`: the configuration file of a command that runs without a daemon.
    pub config: Option<PathBuf>,
    pub variables: Variables,
    /// `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, in upper or lower case.
    pub proxies: ProxyConfig,
    pub log: Option<String>,
    /// The cores and the memory of this machine. `None`: the defaults do not depend on the machine.
    pub machine: Option<Machine>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserFolders {
    pub home: Option<PathBuf>,
    pub data_home: Option<PathBuf>,
    pub config_home: Option<PathBuf>,
    pub runtime_dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoginVariables {
    /// `config.json` in the folder that `DOCKER_CONFIG` names.
    pub docker_config: Option<PathBuf>,
    /// The login files of podman, skopeo and buildah, in the order of containers-auth.json(5).
    pub containers_auth: Vec<PathBuf>,
    /// `IMAGELET_CREDS`: a login, like that of `pull --creds`. Unlike an argument, it is not in the process list.
    pub creds: Option<Secret>,
}

/// Whether the terminal can neither move the cursor nor show colours.
pub fn has_dumb_terminal() -> bool {
    variable("TERM").is_some_and(|term| term == "dumb")
}

pub fn is_empty_variable(name: impl AsRef<OsStr>) -> bool {
    std::env::var_os(name).is_some_and(|value| value.is_empty())
}

/// The value of an environment variable. `None`: the variable is unset, empty or not UTF-8.
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name)?.into_string().ok().filter(|value| !value.is_empty())
}

impl Environment {
    pub fn of_process() -> Self {
        let directory = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let folders = UserFolders {
            home: directory("HOME"),
            data_home: directory("XDG_DATA_HOME"),
            config_home: directory("XDG_CONFIG_HOME"),
            runtime_dir: directory("XDG_RUNTIME_DIR"),
        };
        Self {
            root: rustix::process::geteuid().is_root(),
            logins: LoginVariables {
                docker_config: directory("DOCKER_CONFIG").map(|folder| folder.join("config.json")),
                containers_auth: containers_auth(variable("REGISTRY_AUTH_FILE"), &folders),
                creds: variable("IMAGELET_CREDS").map(Secret::new),
            },
            folders,
            config: std::env::var_os("IMAGELET_CONFIG").map(PathBuf::from).filter(|path| !path.as_os_str().is_empty()),
            variables: Variables(
                std::env::vars_os().filter(|(name, _)| !OURS_ALONE.iter().any(|ours| name == ours)).collect(),
            ),
            proxies: proxies(variable),
            log: variable("IMAGELET_LOG"),
            machine: Some(Machine::here()),
        }
    }

    /// Whether this process runs in a pod. Kubernetes sets the variable in each container of a pod.
    pub fn is_in_cluster(&self) -> bool {
        self.variables.0.iter().any(|(name, value)| name == "KUBERNETES_SERVICE_HOST" && !value.is_empty())
    }

    pub(crate) fn socket_default(&self) -> PathBuf {
        match &self.folders.runtime_dir {
            Some(directory) if !self.root => directory.join("imagelet/imagelet.sock"),
            _ => SYSTEM_SOCKET.into(),
        }
    }

    pub fn sockets_to_try(&self) -> Vec<PathBuf> {
        let mut sockets = vec![self.socket_default(), SYSTEM_SOCKET.into()];
        sockets.dedup();
        sockets
    }

    pub fn store_default(&self) -> PathBuf {
        if self.root {
            return SYSTEM_STORE.into();
        }
        let UserFolders { home, data_home, .. } = &self.folders;
        let data = data_home.clone().or_else(|| home.as_ref().map(|home| home.join(".local/share")));
        data.map_or_else(|| SYSTEM_STORE.into(), |data| data.join("imagelet"))
    }
}

fn containers_auth(named: Option<String>, folders: &UserFolders) -> Vec<PathBuf> {
    let UserFolders { home, config_home, runtime_dir, .. } = folders;
    let of_user = || format!("/run/containers/{}", rustix::process::getuid().as_raw()).into();
    let runtime = runtime_dir.as_ref().map_or_else(of_user, |folder| folder.join("containers"));
    let config = config_home.clone().or_else(|| Some(home.as_ref()?.join(".config")));
    let usual = [runtime].into_iter().chain(config.map(|folder| folder.join("containers")));
    named.map_or_else(|| usual.map(|folder| folder.join("auth.json")).collect(), |named| vec![named.into()])
}

/// Reads the proxy variables: as in Go, upper case first. `ALL_PROXY` is for schemes without a variable of their own.
fn proxies(variable: impl Fn(&str) -> Option<String>) -> ProxyConfig {
    let either = |name: &str| variable(name).or_else(|| variable(&name.to_ascii_lowercase()));
    let proxy = |name: &str| either(name).or_else(|| either("ALL_PROXY")).map(Secret::new);
    let no_proxy = either("NO_PROXY").unwrap_or_default();
    ProxyConfig { https: proxy("HTTPS_PROXY"), http: proxy("HTTP_PROXY"), no_proxy, ..ProxyConfig::default() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn proxies_are_read_in_both_cases_and_all_proxy_stands_in() {
        for (variables, https, http, no_proxy) in [
            (&[][..], None, None, ""),
            (&[("HTTPS_PROXY", "a"), ("https_proxy", "b"), ("no_proxy", "c")], Some("a"), None, "c"),
            (
                &[("http_proxy", "a"), ("all_proxy", "b"), ("NO_PROXY", "c"), ("no_proxy", "d")],
                Some("b"),
                Some("a"),
                "c",
            ),
            (&[("ALL_PROXY", "a")], Some("a"), Some("a"), ""),
        ] {
            let find =
                |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
            let secret = |text: Option<&str>| text.map(Secret::new);
            let (https, http, no_proxy) = (secret(https), secret(http), no_proxy.into());
            let expected = ProxyConfig { https, http, no_proxy, ..ProxyConfig::default() };
            assert_eq!(proxies(find), expected, "{variables:?}");
        }
    }

    #[test]
    fn the_logins_of_podman_are_looked_for_where_it_keeps_them() {
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        for (named, runtime_dir, config_home, home, expected) in [
            ("a.json", "/run/user/7", "/c", "/h", &["a.json"][..]),
            ("", "/run/user/7", "/c", "/h", &["/run/user/7/containers/auth.json", "/c/containers/auth.json"]),
            ("", "", "", "/h", &["/run/containers/UID/auth.json", "/h/.config/containers/auth.json"]),
            ("", "", "", "", &["/run/containers/UID/auth.json"]),
        ] {
            let [runtime_dir, config_home, home] = [runtime_dir, config_home, home].map(path);
            let folders = UserFolders { home, config_home, runtime_dir, data_home: None };
            let found = containers_auth(Some(named.to_owned()).filter(|named| !named.is_empty()), &folders);
            let user = rustix::process::getuid().as_raw().to_string();
            assert_eq!(
                found,
                expected.iter().map(|path| PathBuf::from(path.replace("UID", &user))).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn root_uses_the_systems_places_and_a_user_his_own() {
        let of = |root: bool, folders: UserFolders| Environment { root, folders, ..Environment::default() };
        let root = of(true, UserFolders { home: Some("/root".into()), ..UserFolders::default() });
        assert_eq!(root.store_default(), Path::new("/var/lib/imagelet"));
        assert_eq!(root.socket_default(), Path::new("/run/imagelet/imagelet.sock"));

        let folders = UserFolders {
            home: Some("/home/u".into()),
            runtime_dir: Some("/run/user/1000".into()),
            ..UserFolders::default()
        };
        let user = of(false, folders.clone());
        assert_eq!(user.store_default(), Path::new("/home/u/.local/share/imagelet"));
        assert_eq!(user.socket_default(), Path::new("/run/user/1000/imagelet/imagelet.sock"));
        assert_eq!(user.sockets_to_try().last().map(PathBuf::as_path), Some(Path::new(SYSTEM_SOCKET)));

        let moved = of(false, UserFolders { data_home: Some("/data".into()), ..folders });
        assert_eq!(moved.store_default(), Path::new("/data/imagelet"));
    }
}
