//! `pod install`: enters the mount namespace of the pod's host, copies the program there and runs `install` there. It
//! writes the program first and removes it last, so that an interrupted attempt can be repeated.

use std::{
    fs, io,
    os::{
        fd::AsFd as _,
        unix::fs::{MetadataExt as _, symlink},
    },
    path::{Path, PathBuf},
    process::ExitCode,
};

use imagelet_core::image::Digest;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::runtime;

use super::{
    PROGRAM, SERVICE_UNIT,
    contents::BASE_LENGTH_MAX,
    host::PACKAGED_UNITS,
    owned_file::{new_of, of_path, read_bounded, remove, remove_empty_folder, replace},
};
use crate::{
    cli::{Global, InstallArgs, PodInstallArgs},
    output::Format,
    sources::Context,
};
use imagelet_node::{config::Environment, failure::Failure};

const FOLDER: &str = "/opt/imagelet";
const BASE_CONFIGURATION: &str = "/opt/imagelet/config.yaml";
const HTTP_TOKEN: &str = "/opt/imagelet/http-token";
const PROXY_PASSWORD: &str = "/opt/imagelet/proxy-password";
/// The digests of the files above and of the arguments. The daemon is restarted if they differ from those of this run.
const INSTALLED: &str = "/opt/imagelet/installed";
const LINK: &str = "/usr/local/bin/imagelet";
const PROGRAM_LENGTH_MAX: usize = 512 << 20;
const SECRET_LENGTH_MAX: usize = 4096;

type PrivateFile = (&'static str, Option<Vec<u8>>);

/// **Invariant:** the process has one thread, because the kernel moves only the calling thread into a mount namespace.
pub(crate) fn set_host_up(arguments: PodInstallArgs, format: Format) -> Result<ExitCode, Failure> {
    let PodInstallArgs { host_namespace, http_token, proxy_password, install } = arguments;
    let read =
        |path: &Path, length_max: usize| read_bounded(path, length_max).map_err(|error| of_path("read", path, &error));
    let program = read(Path::new("/proc/self/exe"), PROGRAM_LENGTH_MAX)?;
    let given = |path: Option<&PathBuf>, length_max| path.map(|path| read(path, length_max)).transpose();
    let private = [
        (BASE_CONFIGURATION, given(install.base_configuration.as_ref(), BASE_LENGTH_MAX)?),
        (HTTP_TOKEN, given(http_token.as_ref(), SECRET_LENGTH_MAX)?),
        (PROXY_PASSWORD, given(proxy_password.as_ref(), SECRET_LENGTH_MAX)?),
    ];
    enter(&host_namespace)?;
    if !Path::new("/run/systemd/system").is_dir() {
        return Err(Failure::new("FailedPrecondition", "systemd does not run on this host")
            .or_hint("exclude the node by `node.nodeSelector` of the chart"));
    }
    let base_configuration = install.base_configuration.is_some().then(|| BASE_CONFIGURATION.into());
    let install = InstallArgs { base_configuration, is_from_pod: true, ..install };
    if install.uninstall { take_back(install, format) } else { set_up(install, &program, &private, format) }
}

/// After the call, this process opens each path on the host.
fn enter(namespace: &Path) -> Result<(), Failure> {
    let failed = |error: &io::Error| {
        Failure::because(format!("could not enter the mount namespace `{}`", namespace.display()), error)
    };
    let link = fs::File::open(namespace).map_err(|error| failed(&error))?;
    let of_host = link.metadata().map_err(|error| failed(&error))?;
    let own = fs::metadata("/proc/self/ns/mnt").map_err(|error| failed(&error))?;
    if (of_host.dev(), of_host.ino()) == (own.dev(), own.ino()) {
        let message = format!("`{}` is the mount namespace of this process, not of a host", namespace.display());
        return Err(Failure::invalid(message));
    }
    move_into_link_name_space(link.as_fd(), Some(LinkNameSpaceType::Mount)).map_err(|error| failed(&error.into()))
}

fn set_up(install: InstallArgs, program: &[u8], private: &[PrivateFile], format: Format) -> Result<ExitCode, Failure> {
    let is_own = Path::new(PROGRAM).exists();
    let units = [SERVICE_UNIT].into_iter().chain(PACKAGED_UNITS);
    if let Some(unit) = units.into_iter().find(|unit| !is_own && Path::new(unit).exists()) {
        let message = format!("`{unit}` exists: imagelet was installed on this host by other means");
        return Err(Failure::new("FailedPrecondition", message).or_hint(
            "`imagelet install --uninstall` or `apt remove imagelet` there, or exclude the node by `node.nodeSelector`",
        ));
    }
    check_folder()?;
    let wanted = record(program, private, &install);
    let has_program = read_bounded(Path::new(PROGRAM), PROGRAM_LENGTH_MAX).is_ok_and(|there| there == program);
    let keep_running = has_program && fs::read_to_string(INSTALLED).is_ok_and(|there| there == wanted);
    // `INSTALLED` is absent until the installation succeeds. After a failed attempt, the next one restarts the daemon.
    remove(Path::new(INSTALLED))?;
    if !keep_running {
        replace(Path::new(PROGRAM), program, 0o755)?;
    }
    for (path, content) in private {
        match content {
            Some(content) => replace(Path::new(path), content, 0o600)?,
            None => remove(Path::new(path))?,
        }
    }
    // A failure is ignored. An administrator's file may have the path of the link, or the folder may be read-only.
    let _is_there = symlink(PROGRAM, LINK);
    run(InstallArgs { keep_running, ..install }, format)?;
    replace(Path::new(INSTALLED), wanted.as_bytes(), 0o600)?;
    Ok(ExitCode::SUCCESS)
}

fn take_back(install: InstallArgs, format: Format) -> Result<ExitCode, Failure> {
    if !Path::new(PROGRAM).exists() {
        return remove_files(&[PROGRAM]);
    }
    remove(Path::new(INSTALLED))?;
    run(install, format)?;
    if fs::read_link(LINK).is_ok_and(|target| target == Path::new(PROGRAM)) {
        remove(Path::new(LINK))?;
    }
    remove_files(&[INSTALLED, BASE_CONFIGURATION, HTTP_TOKEN, PROXY_PASSWORD, PROGRAM])
}

/// Runs `install` on the host, without the pod's environment variables.
fn run(install: InstallArgs, format: Format) -> Result<ExitCode, Failure> {
    let environment = Environment { root: rustix::process::geteuid().is_root(), ..Environment::default() };
    let context = Context { global: Global { output: format, ..Global::default() }, environment };
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(super::run(install, &context))
}

/// Removes the files and their temporary copies, which an interrupted attempt may leave. Removes the folder if empty.
fn remove_files(paths: &[&str]) -> Result<ExitCode, Failure> {
    for path in paths.iter().map(Path::new) {
        remove(&new_of(path))?;
        remove(path)?;
    }
    remove_empty_folder(Path::new(FOLDER))?;
    Ok(ExitCode::SUCCESS)
}

/// Creates the program's folder. Fails if another user than root can write into it: systemd runs the program as root.
fn check_folder() -> Result<(), Failure> {
    let folder = Path::new(FOLDER);
    fs::create_dir_all(folder).map_err(|error| of_path("create", folder, &error))?;
    let metadata = fs::symlink_metadata(folder).map_err(|error| of_path("read", folder, &error))?;
    if metadata.is_dir() && metadata.uid() == 0 && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Failure::new("FailedPrecondition", format!("`{FOLDER}` is no folder that root alone may change")))
}

fn record(program: &[u8], private: &[PrivateFile], install: &InstallArgs) -> String {
    let contents = private.iter().map(|(_, content)| content.as_deref().unwrap_or_default());
    let arguments = format!("{install:?}");
    let parts = [program].into_iter().chain(contents).chain([arguments.as_bytes()]);
    parts.map(|part| Digest::of(part).as_str().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_is_done_again_where_a_file_or_an_argument_of_it_changed() {
        let record = |configuration: &str, password: Option<&str>, node_name: &str| {
            let private = [(BASE_CONFIGURATION, Some(configuration)), (PROXY_PASSWORD, password)];
            let private = private.map(|(name, content)| (name, content.map(|text| text.as_bytes().to_vec())));
            let install = InstallArgs { node_name: Some(node_name.into()), ..InstallArgs::default() };
            super::record(b"program", &private, &install)
        };
        let one = record("a: 1", None, "node-1");
        assert_eq!(one, record("a: 1", None, "node-1"));
        assert_ne!(one, record("a: 2", None, "node-1"));
        assert_ne!(one, record("a: 1", None, "node-2"));
        assert_ne!(one, record("a: 1", Some("hunter2"), "node-1"), "another password is another installation");
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
