//! `imagelet install`: installs a systemd service on a host, between kubelet and runtime or beside them, and uninstalls
//! it. `plan` derives the steps from the flags and from facts about the host. Each file that `install` writes contains
//! the digest of its content: a file that an administrator has changed is recognised by it, and kept.

mod apply;
mod contents;
mod host;
mod owned_file;
mod plan;
mod pod;
#[cfg(test)]
mod tests;

use std::{path::Path, process::ExitCode};

use imagelet_core::printable::printable;
use serde_json::{Map, Value, json};

pub(crate) use self::pod::set_host_up;
use self::{
    apply::{Outcome, apply},
    contents::{BASE_LENGTH_MAX, base_configuration},
    host::gather,
    owned_file::read_bounded,
    plan::{Step, plan},
};
use crate::{
    cli::{InstallArgs, Role, ServeArgs},
    output::{Table, or_dash, print},
    sources::{Context, sources},
};
use imagelet_node::{config::Backend, failure::Failure, serve::check_files};

const PROGRAM: &str = "/opt/imagelet/imagelet";
/// The daemon's socket. The systemd unit `imagelet.socket` names the same path.
const SOCKET: &str = "/run/imagelet/imagelet.sock";
const SOCKET_FOLDER: &str = "/run/imagelet";
const CONFIGURATION_FOLDER: &str = "/etc/imagelet";
const CONFIGURATION: &str = "/etc/imagelet/config.yaml";
const SERVICE_UNIT: &str = "/etc/systemd/system/imagelet.service";
const SOCKET_UNIT: &str = "/etc/systemd/system/imagelet.socket";
const KUBELET_UNIT_FOLDER: &str = "/etc/systemd/system/kubelet.service.d";
const KUBELET_UNIT_DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/10-imagelet.conf";
/// The folder for the kubelet's configuration drop-in if neither the command line nor the running kubelet names one.
const KUBELET_CONFIG_DIR: &str = "/etc/kubernetes/kubelet.conf.d";
const KUBELET_CONFIG_NAME: &str = "90-imagelet.conf";

pub(crate) async fn run(arguments: InstallArgs, context: &Context) -> Result<ExitCode, Failure> {
    let InstallArgs { role, dry_run, .. } = arguments;
    let root = arguments.root.as_deref().map(std::path::absolute).transpose()?.unwrap_or_else(|| "/".into());
    if root == Path::new("/") && !context.environment.root && !dry_run {
        return Err(Failure::new("PermissionDenied", "only root can set a host up"));
    }
    let kubeconfig = arguments.kubeconfig.as_deref().map(std::path::absolute).transpose()?;
    let request = InstallArgs { kubeconfig, ..arguments };
    let base_configuration = request.base_configuration.as_deref().map(base).transpose()?.unwrap_or_default();
    let read = |file: &Path| {
        let arguments = ServeArgs { config: Some(file.to_owned()), ..ServeArgs::default() };
        let context = Context { environment: context.environment.clone(), ..Context::default() };
        sources(&arguments, &context)?.settings().map_err(|error| Failure::of(&error))
    };
    let host = gather(&request, &root, base_configuration, |file| {
        Ok(match read(file)?.images.backend {
            Backend::Cri(runtime) => Some(runtime.endpoint.to_string()),
            Backend::Embedded(_) => None,
        })
    })?;
    let steps = plan(&request, &host)?;
    let check = async |file: &Path| check_files(&read(file)?).await;
    let (outcomes, failure) = apply(&steps, &root, &request, check).await;
    let printed = print(context.global.output, &json!({ "steps": outcomes }), |out| table(&outcomes).write(out))?;
    match failure {
        Some(failure) if role.is_some() => {
            Err(failure.or_hint("`imagelet install --uninstall` takes back what was written"))
        }
        Some(failure) => Err(failure),
        None => Ok(printed),
    }
}

fn base(path: &Path) -> Result<Map<String, Value>, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::invalid(format!("`{}`: {}", path.display(), printable(&error.to_string())))
    };
    let bytes = read_bounded(path, BASE_LENGTH_MAX).map_err(|error| failed(&error))?;
    let text = String::from_utf8(bytes).map_err(|error| failed(&error))?;
    base_configuration(&text).map_err(|error| failed(&error))
}

fn table(outcomes: &[Outcome]) -> Table {
    let rows = outcomes.iter().map(|done| [done.step, or_dash(&done.target), done.result, or_dash(&done.detail)]);
    Table::new(["STEP", "TARGET", "RESULT", "DETAIL"]).rows(rows)
}
