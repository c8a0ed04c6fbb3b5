//! Sets the host of a pod up, or takes it back: enters the host's mount namespace, copies the program there and runs it.
//!
//! ```text
//! /opt/imagelet/imagelet        the program; while it is there, the host belongs to the pod's installation
//! /opt/imagelet/config.yaml     what the pod has of the daemon's configuration
//! /opt/imagelet/http-token      the token of the HTTP server
//! /opt/imagelet/proxy-password  the password for the proxies that the configuration names
//! /opt/imagelet/installed       a digest of the above and of the arguments: the last installation that succeeded
//! /usr/local/bin/imagelet       a link to the program, where nothing else is
//! ```
//!
//! The program is the first file that is written and the last that is removed, so that each step can be repeated.

use std::{
    ffi::OsString,
    fs, io,
    os::{
        fd::AsFd as _,
        unix::fs::{MetadataExt as _, symlink},
    },
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use clap::ValueEnum as _;
use imagelet_core::image::Digest;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{
    SERVICE_UNIT,
    contents::BASE_LENGTH_MAX,
    host::PACKAGED_UNITS,
    owned_file::{new_of, of_path, read_bounded, remove, remove_empty_folder, replace},
};
use crate::{
    cli::{InstallArgs, PodInstallArgs},
    output::Format,
};
use imagelet_node::failure::Failure;

const FOLDER: &str = "/opt/imagelet";
const PROGRAM: &str = "/opt/imagelet/imagelet";
const BASE_CONFIGURATION: &str = "/opt/imagelet/config.yaml";
const HTTP_TOKEN: &str = "/opt/imagelet/http-token";
const PROXY_PASSWORD: &str = "/opt/imagelet/proxy-password";
const INSTALLED: &str = "/opt/imagelet/installed";
const LINK: &str = "/usr/local/bin/imagelet";
/// Where the programs of a host are, `systemctl` among them.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const PROGRAM_LENGTH_MAX: usize = 512 << 20;
const SECRET_LENGTH_MAX: usize = 4096;

/// What the pod brings to the host.
#[derive(Debug)]
struct HostFiles {
    program: Vec<u8>,
    configuration: Option<Vec<u8>>,
    http_token: Option<Vec<u8>>,
    proxy_password: Option<Vec<u8>>,
}

impl HostFiles {
    /// What is written beside the program, for root alone, or removed where the pod has none.
    fn private(&self) -> [(&'static str, Option<&[u8]>); 3] {
        [
            (BASE_CONFIGURATION, self.configuration.as_deref()),
            (HTTP_TOKEN, self.http_token.as_deref()),
            (PROXY_PASSWORD, self.proxy_password.as_deref()),
        ]
    }
}

/// Sets the host up, or takes it back, as the arguments say.
///
/// **Invariant:** the process has one thread. The kernel moves no other one into a mount namespace.
///
/// # Errors
/// When the namespace cannot be entered, the host was set up by other means, or the program fails there.
pub(crate) fn set_host_up(arguments: PodInstallArgs, format: Format) -> Result<ExitCode, Failure> {
    let PodInstallArgs { host_namespace, http_token, proxy_password, install } = arguments;
    let read =
        |path: &Path, length_max: usize| read_bounded(path, length_max).map_err(|error| of_path("read", path, &error));
    let files = HostFiles {
        program: read(Path::new("/proc/self/exe"), PROGRAM_LENGTH_MAX)?,
        configuration: install.base_configuration.as_deref().map(|path| read(path, BASE_LENGTH_MAX)).transpose()?,
        http_token: http_token.as_deref().map(|path| read(path, SECRET_LENGTH_MAX)).transpose()?,
        proxy_password: proxy_password.as_deref().map(|path| read(path, SECRET_LENGTH_MAX)).transpose()?,
    };
    enter(&host_namespace)?;
    if !Path::new("/run/systemd/system").is_dir() {
        return Err(Failure::new("FailedPrecondition", "systemd does not run on this host")
            .or_hint("exclude the node by `node.nodeSelector` of the chart"));
    }
    if install.uninstall { take_back(&install, format) } else { set_up(&install, &files, format) }
}

/// Enters the mount namespace of the host: from here on each path is one of the host.
fn enter(namespace: &Path) -> Result<(), Failure> {
    let failed = |error: &io::Error| {
        Failure::because(format!("could not enter the mount namespace `{}`", namespace.display()), error)
    };
    let link = fs::File::open(namespace).map_err(|error| failed(&error))?;
    let of_host = link.metadata().map_err(|error| failed(&error))?;
    let own = fs::metadata("/proc/self/ns/mnt").map_err(|error| failed(&error))?;
    if (of_host.dev(), of_host.ino()) == (own.dev(), own.ino()) {
        let message = format!("`{}` is the mount namespace of this process, not of a host", namespace.display());
        return Err(Failure::new("InvalidArgument", message));
    }
    move_into_link_name_space(link.as_fd(), Some(LinkNameSpaceType::Mount)).map_err(|error| failed(&error.into()))
}

fn set_up(install: &InstallArgs, files: &HostFiles, format: Format) -> Result<ExitCode, Failure> {
    let is_own = Path::new(PROGRAM).exists();
    let units = [SERVICE_UNIT].into_iter().chain(PACKAGED_UNITS);
    if let Some(unit) = units.into_iter().find(|unit| !is_own && Path::new(unit).exists()) {
        let message = format!("`{unit}` exists: imagelet was installed on this host by other means");
        return Err(Failure::new("FailedPrecondition", message).or_hint(
            "`imagelet install --uninstall` or `apt remove imagelet` there, or exclude the node by `node.nodeSelector`",
        ));
    }
    check_folder()?;
    let arguments = child_arguments(install, files, format);
    let wanted = record(files, &arguments);
    let has_program = read_bounded(Path::new(PROGRAM), PROGRAM_LENGTH_MAX).is_ok_and(|there| there == files.program);
    let is_unchanged = has_program && fs::read_to_string(INSTALLED).is_ok_and(|there| there == wanted);
    // Until this attempt has succeeded, what runs may be older than the files.
    remove(Path::new(INSTALLED))?;
    if !is_unchanged {
        replace(Path::new(PROGRAM), &files.program, 0o755)?;
    }
    for (path, content) in files.private() {
        match content {
            Some(content) => replace(Path::new(path), content, 0o600)?,
            None => remove(Path::new(path))?,
        }
    }
    // A file of the administrator stays; a folder that is read-only has no link.
    let _is_there = symlink(PROGRAM, LINK);
    run_there(&arguments, is_unchanged.then_some("--keep-running"))?;
    replace(Path::new(INSTALLED), wanted.as_bytes(), 0o600)?;
    Ok(ExitCode::SUCCESS)
}

fn take_back(install: &InstallArgs, format: Format) -> Result<ExitCode, Failure> {
    if !Path::new(PROGRAM).exists() {
        return remove_files(&[PROGRAM]);
    }
    remove(Path::new(INSTALLED))?;
    let mut arguments: Vec<OsString> = vec!["install".into(), "--uninstall".into()];
    arguments.extend(flag("--kubelet-config-dir", install.kubelet_config_dir.as_deref()));
    arguments.extend(output(format));
    run_there(&arguments, None)?;
    if fs::read_link(LINK).is_ok_and(|target| target == Path::new(PROGRAM)) {
        remove(Path::new(LINK))?;
    }
    remove_files(&[INSTALLED, BASE_CONFIGURATION, HTTP_TOKEN, PROXY_PASSWORD, PROGRAM])
}

/// Removes files of the folder, what an interrupted attempt left of them, and the folder.
fn remove_files(paths: &[&str]) -> Result<ExitCode, Failure> {
    for path in paths.iter().map(Path::new) {
        remove(&new_of(path))?;
        remove(path)?;
    }
    // A file of the administrator keeps it.
    remove_empty_folder(Path::new(FOLDER))?;
    Ok(ExitCode::SUCCESS)
}

/// The folder belongs to root, and no other user writes into it: systemd starts the program in it as root.
fn check_folder() -> Result<(), Failure> {
    let folder = Path::new(FOLDER);
    fs::create_dir_all(folder).map_err(|error| of_path("create", folder, &error))?;
    let metadata = fs::symlink_metadata(folder).map_err(|error| of_path("read", folder, &error))?;
    if metadata.is_dir() && metadata.uid() == 0 && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Failure::new("FailedPrecondition", format!("`{FOLDER}` is no folder that root alone may change")))
}

fn child_arguments(install: &InstallArgs, files: &HostFiles, format: Format) -> Vec<OsString> {
    let InstallArgs { role, runtime_endpoint, node_name, kubeconfig, kubelet_config_dir, .. } = install;
    let mut arguments: Vec<OsString> = vec!["install".into()];
    let role = role.as_ref().and_then(clap::ValueEnum::to_possible_value);
    arguments.extend(role.map(|role| format!("--role={}", role.get_name()).into()));
    arguments.extend(flag("--runtime-endpoint", runtime_endpoint.as_deref().map(Path::new)));
    arguments.extend(flag("--node-name", node_name.as_deref().map(Path::new)));
    arguments.extend(flag("--kubeconfig", kubeconfig.as_deref()));
    arguments.extend(flag("--kubelet-config-dir", kubelet_config_dir.as_deref()));
    arguments.extend(flag("--base-configuration", files.configuration.as_ref().map(|_| Path::new(BASE_CONFIGURATION))));
    arguments.extend(output(format));
    arguments
}

/// `NAME=VALUE`: a value that begins with a dash stays a value.
fn flag(name: &str, value: Option<&Path>) -> Option<OsString> {
    let mut flag = OsString::from(format!("{name}="));
    flag.push(value?);
    Some(flag)
}

fn output(format: Format) -> Option<OsString> {
    Some(format!("--output={}", format.to_possible_value()?.get_name()).into())
}

fn record(files: &HostFiles, arguments: &[OsString]) -> String {
    let mut parts = vec![Digest::of(&files.program)];
    parts.extend(files.private().map(|(_, content)| Digest::of(content.unwrap_or(b""))));
    parts.extend(arguments.iter().map(|argument| Digest::of(argument.as_encoded_bytes())));
    parts.iter().map(Digest::as_str).collect::<Vec<_>>().join("\n")
}

/// Runs the program on the host, with its output in the log of this pod, and none of the pod's variables.
fn run_there(arguments: &[OsString], more: Option<&str>) -> Result<(), Failure> {
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments)
        .args(more)
        .env_clear()
        .env("PATH", PATH)
        // Over a socket of its own, systemctl reads the process id of systemd there, which has none in the process
        // namespace of a pod, and ends with "No data available".
        .env("SYSTEMCTL_FORCE_BUS", "1")
        .current_dir("/")
        .stdin(Stdio::null());
    let status = command.status().map_err(|error| of_path("run", Path::new(PROGRAM), &error))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::new("Failed", format!("`{PROGRAM}` failed on the host ({status})")))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command as CliCommand, PodCommand};

    fn read(line: &str) -> PodInstallArgs {
        match Cli::parse_from(line.split(' ')).command {
            CliCommand::Pod(PodCommand::Install(arguments)) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_program_on_the_host_gets_the_arguments_that_it_reads_and_those_of_the_pod_stay() {
        let line = "imagelet pod install --host-namespace=/host/mnt --role=between --node-name=-n --kubeconfig=/k \
                    --kubelet-config-dir=/d --runtime-endpoint=unix:///r --base-configuration=/pod/c --http-token=/pod/t \
                    --proxy-password=/pod/p";
        let given = read(line);
        let files = |configuration: Option<&str>| HostFiles {
            program: b"program".to_vec(),
            configuration: configuration.map(|text| text.as_bytes().to_vec()),
            http_token: None,
            proxy_password: None,
        };
        let arguments = child_arguments(&given.install, &files(Some("a: 1")), Format::Table);
        let line = [vec!["imagelet".into()], arguments.clone()].concat();
        let CliCommand::Install(there) = Cli::parse_from(line).command else { panic!("another command") };
        let path = |path: &str| Some(PathBuf::from(path));
        assert_eq!(there.role, given.install.role);
        assert_eq!(there.node_name.as_deref(), Some("-n"));
        assert_eq!(there.runtime_endpoint.as_deref(), Some("unix:///r"));
        assert_eq!((there.kubeconfig, there.kubelet_config_dir), (path("/k"), path("/d")));
        assert_eq!((there.base_configuration, there.root), (path(BASE_CONFIGURATION), None));

        let one = record(&files(Some("a: 1")), &arguments);
        assert_eq!(one, record(&files(Some("a: 1")), &arguments));
        assert_ne!(one, record(&files(Some("a: 2")), &arguments));
        assert_ne!(one, record(&files(Some("a: 1")), &arguments[1..]));
        let with_password = HostFiles { proxy_password: Some(b"hunter2".to_vec()), ..files(Some("a: 1")) };
        assert_ne!(one, record(&with_password, &arguments), "another password is another installation");
    }

    #[test]
    fn the_own_namespace_is_refused_and_so_is_a_file_that_is_none() {
        let error = enter(Path::new("/proc/self/ns/mnt")).unwrap_err();
        assert!(error.message.contains("is the mount namespace of this process"), "{error:?}");
        let error = enter(Path::new("/etc/passwd")).unwrap_err();
        assert!(error.message.contains("could not enter"), "{error:?}");
        let error = enter(Path::new("/absent")).unwrap_err();
        assert!(error.message.contains("`/absent`"), "{error:?}");
    }
}
