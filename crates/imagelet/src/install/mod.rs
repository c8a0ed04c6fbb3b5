//! `imagelet install`: sets a host up as a service of systemd, for a kubelet or beside one, and takes it back.
//!
//! What is written, started and removed is decided by a plain function of the request and of facts about the host. Each
//! file that is written names the digest of its content, so that a file changed by an administrator is recognised and stays.

mod apply;
mod contents;
mod host;
mod owned_file;
mod plan;
mod pod;
mod run;
#[cfg(test)]
mod tests;

use self::{
    apply::{Outcome, apply},
    contents::BaseConfiguration,
    host::gather,
    plan::{Step, plan},
};
pub(crate) use self::{pod::set_host_up, run::run};
use crate::cli::{InstallArgs, Role};

/// The service's socket, as the unit and the package have it.
const SOCKET: &str = "/run/imagelet/imagelet.sock";
const SOCKET_FOLDER: &str = "/run/imagelet";
const CONFIGURATION_FOLDER: &str = "/etc/imagelet";
const CONFIGURATION: &str = "/etc/imagelet/config.yaml";
const SERVICE_UNIT: &str = "/etc/systemd/system/imagelet.service";
const SOCKET_UNIT: &str = "/etc/systemd/system/imagelet.socket";
const KUBELET_UNIT_FOLDER: &str = "/etc/systemd/system/kubelet.service.d";
const KUBELET_UNIT_DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/10-imagelet.conf";
/// Where the kubelet's drop-ins are written if the kubelet names no folder.
const KUBELET_CONFIG_DIR: &str = "/etc/kubernetes/kubelet.conf.d";
const KUBELET_CONFIG_NAME: &str = "90-imagelet.conf";
