//! The runtime's identity and configuration, from its CRI answers. Native imports depend on these values.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use imagelet_core::{
    image::{DOCKER_HUB_NAMES, Reference, is_docker_hub},
    ports::{ImageFilesystems, Members, default_sandbox_image},
};

const RUNTIME: &str = "containerd";
/// The only snapshotter that imports support. Its snapshots are plain folders, which overlayfs stacks.
pub(crate) const OVERLAYFS: &str = "overlayfs";
const SNAPSHOTTER_FOLDER: &str = "io.containerd.snapshotter.v1.";
/// The name of the staging folder of imports. This folder is in containerd's root, on the mount of the snapshots. It is
/// outside the snapshotter's folder, because containerd removes unknown entries of the snapshotter's folder.
const STAGING_FOLDER: &str = "imagelet-staging";
const JSON_BYTES_MAX: usize = 4 << 20;
const NAME_BYTES_MAX: usize = 1024;
const FOLDERS_MAX: usize = 64;
/// The status condition in which containerd reports deprecated settings by their ids.
const DEPRECATIONS: &str = "ContainerdHasNoDeprecationWarnings";
/// Parts of the ids of deprecated registry settings that imagelet does not read.
const DEPRECATED_REGISTRY: [&str; 3] = ["cri-registry-mirrors", "cri-registry-auths", "cri-registry-configs"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeInfo {
    pub name: String,
    pub version: String,
    pub places: Vec<SnapshotterPlace>,
    pub configuration: RuntimeConfiguration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotterPlace {
    /// The runtime's root folder.
    pub root: PathBuf,
    pub snapshotter: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfiguration {
    /// The default snapshotter of images. `None` means that the runtime does not report it.
    pub snapshotter: Option<String>,
    /// The snapshotter of each runtime handler. An empty text means the default snapshotter.
    pub handlers: BTreeMap<String, String>,
    pub sandbox_images: Vec<String>,
    pub registries: RegistrySettings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrySettings {
    Reported {
        /// Folders that contain `HOST/hosts.toml`, in search order.
        folders: Vec<PathBuf>,
        /// Registries with configured mirrors. `*` means all registries.
        mirrors: BTreeSet<String>,
        /// Hosts with configured credentials or certificates.
        configs: BTreeSet<String>,
        /// Whether the runtime adds configured headers to registry requests. `User-Agent` does not count.
        has_headers: bool,
    },
    Hidden {
        /// Whether the runtime warns of deprecated registry settings, or its report is unreadable.
        has_unread: bool,
    },
}

impl Default for RegistrySettings {
    fn default() -> Self {
        Self::Hidden { has_unread: false }
    }
}

impl RegistrySettings {
    fn reported(registry: &Members<'_>) -> Self {
        let folders: String = registry.get("configPath").unwrap_or_default();
        // Older configurations store credentials by endpoint address instead of by host.
        let of_address = |address: String| {
            let host = address.split_once("://").map_or(address.as_str(), |(_, rest)| rest);
            host.split('/').next().unwrap_or_default().to_owned()
        };
        let keyed_by_address = registry.object("auths").names().map(of_address);
        Self::Reported {
            folders: std::env::split_paths(&folders).filter(|folder| folder.is_absolute()).take(FOLDERS_MAX).collect(),
            mirrors: registry.object("mirrors").names().collect(),
            configs: keyed_by_address.chain(registry.object("configs").names()).collect(),
            has_headers: registry.object("headers").names().any(|name| !name.eq_ignore_ascii_case("user-agent")),
        }
    }

    /// A setting for the registry that imagelet does not support. `None` means that imagelet supports all settings.
    pub fn unread(&self, registry: &str) -> Option<&'static str> {
        let hosts: &[&str] = if is_docker_hub(registry) { &DOCKER_HUB_NAMES } else { &[registry] };
        let names = |set: &BTreeSet<String>| hosts.iter().any(|host| set.contains(*host));
        match self {
            Self::Hidden { has_unread } => has_unread.then_some("a deprecated registry setting"),
            Self::Reported { has_headers: true, .. } => Some("registry.headers"),
            Self::Reported { mirrors, .. } if mirrors.contains("*") || names(mirrors) => Some("registry.mirrors"),
            Self::Reported { configs, .. } if names(configs) => Some("registry.configs"),
            Self::Reported { .. } => None,
        }
    }
}

impl RuntimeInfo {
    pub(crate) fn is_containerd(&self) -> bool {
        self.name == RUNTIME
    }

    pub fn place(&self) -> Option<&SnapshotterPlace> {
        self.places.iter().find(|place| place.snapshotter == OVERLAYFS)
    }

    /// The default snapshotter of images, if the runtime reports it or has only one snapshotter.
    pub fn snapshotter(&self) -> Option<&str> {
        match (&self.configuration.snapshotter, &self.places[..]) {
            (Some(reported), _) => Some(reported),
            (None, [only]) => Some(&only.snapshotter),
            _ => None,
        }
    }

    pub(crate) fn is_sandbox_image(&self, image: &Reference) -> bool {
        let wanted = image.canonical();
        let named = self.configuration.sandbox_images.iter().filter_map(|name| name.parse::<Reference>().ok());
        named.map(|name| name.canonical()).any(|name| {
            let is_digest = name.digest().is_some() && name.digest() == wanted.digest();
            name.repository() == wanted.repository() && (name.tag() == wanted.tag() || is_digest)
        })
    }
}

impl SnapshotterPlace {
    pub fn all(filesystems: &ImageFilesystems) -> Vec<Self> {
        let mut places: Vec<Self> = Vec::new();
        for place in filesystems.images.iter().filter_map(|usage| Self::of(&usage.mountpoint)) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    /// Parses the image folder that CRI reports: `ROOT/io.containerd.snapshotter.v1.NAME`.
    pub fn of(mountpoint: &Path) -> Option<Self> {
        let name = mountpoint.file_name()?.to_str()?.strip_prefix(SNAPSHOTTER_FOLDER)?;
        let root = mountpoint.parent().filter(|root| root.is_absolute())?;
        (!name.is_empty()).then(|| Self { root: root.to_owned(), snapshotter: name.to_owned() })
    }

    pub fn folder(&self) -> PathBuf {
        self.root.join(format!("{SNAPSHOTTER_FOLDER}{}", self.snapshotter))
    }

    pub fn staging(&self) -> PathBuf {
        self.root.join(STAGING_FOLDER)
    }
}

impl RuntimeConfiguration {
    /// Parses a runtime's verbose status. `conditions` are the messages of the status conditions by type.
    pub fn read(info: &BTreeMap<String, String>, conditions: &BTreeMap<String, String>) -> Self {
        let text = info.get("config");
        let read = text.filter(|text| text.len() <= JSON_BYTES_MAX).and_then(|text| Members::of(text));
        let warnings = conditions.get(DEPRECATIONS).map(String::as_str).unwrap_or_default();
        let is_warned = DEPRECATED_REGISTRY.iter().any(|id| warnings.contains(id));
        // An unreadable report may contain any registry setting.
        let has_unread = is_warned || (text.is_some() && read.is_none());
        let read = read.unwrap_or_default();
        let containerd = read.object("containerd");
        let handlers = containerd.object("runtimes").all::<Members<'_>>().filter(|(name, _)| is_name(name));
        Self {
            snapshotter: containerd.get("snapshotter").filter(|name: &String| is_name(name)),
            handlers: handlers.map(|(name, handler)| (name, handler.get("snapshotter").unwrap_or_default())).collect(),
            sandbox_images: default_sandbox_image(info).into_iter().collect(),
            registries: match read.get("registry") {
                Some(registry) => RegistrySettings::reported(&registry),
                None => RegistrySettings::Hidden { has_unread },
            },
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_BYTES_MAX
}

#[cfg(test)]
mod tests;
