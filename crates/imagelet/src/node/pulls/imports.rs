//! How pulls enter a runtime: imported or forwarded, and why, for `status`.

use imagelet_containerd::Containerd;
use imagelet_core::runtime::{ImportMode, ImportStanding, ImportingImages, RegistrySettings, WayTaken};

use crate::api::{ImportStatus, PullWayRow, moment};

impl ImportStatus {
    pub(crate) async fn of(images: &ImportingImages) -> Self {
        Self { recent: images.ways().iter().map(PullWayRow::of).collect(), ..Self::standing(&images.standing().await) }
    }

    fn standing(standing: &ImportStanding) -> Self {
        let decision = match (&standing.obstacle, standing.mode) {
            (None, _) => "import",
            (Some(_), ImportMode::Require) => "refuse",
            (Some(_), _) => "forward",
        };
        let mut status = Self {
            mode: standing.mode.name().into(),
            decision: decision.into(),
            code: standing.obstacle.as_ref().map(|reason| reason.code().into()),
            reason: standing.obstacle.as_ref().map(ToString::to_string),
            ..Self::default()
        };
        if let Ok(runtime) = &standing.runtime {
            status.runtime = Some(format!("{} {}", runtime.name, runtime.version));
            status.snapshotter = runtime.snapshotter().map(str::to_owned);
            if let Some(place) = runtime.place() {
                status.root = Some(place.root.display().to_string());
                status.staging = Containerd::staging_of(&place.folder()).map(|staging| staging.display().to_string());
            }
            if let RegistrySettings::Reported { folders, .. } = &runtime.configuration.registries {
                status.registry_folders = Some(folders.iter().map(|folder| folder.display().to_string()).collect());
            }
        }
        status
    }
}

impl PullWayRow {
    fn of(taken: &WayTaken) -> Self {
        Self {
            at: moment(taken.at),
            image: taken.image.clone(),
            way: taken.way.code().into(),
            code: taken.way.reason_code().map(str::to_owned),
            reason: taken.way.to_string(),
            took_ms: u64::try_from(taken.took.as_millis()).unwrap_or(u64::MAX),
            failure: taken.failure.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use imagelet_core::runtime::{ForwardReason, RuntimeConfiguration, RuntimeInfo, SnapshotterPlace};

    use super::*;

    #[test]
    fn a_runtime_is_shown_with_what_speaks_against_imports() {
        let place = SnapshotterPlace { root: "/var/lib/containerd".into(), snapshotter: "overlayfs".into() };
        let runtime = RuntimeInfo {
            name: "containerd".into(),
            version: "1.6.20".into(),
            places: vec![place],
            configuration: RuntimeConfiguration::default(),
        };
        let obstacle = Some(ForwardReason::Staging("it is on another mount".into()));
        let standing = ImportStanding { mode: ImportMode::Auto, runtime: Ok(runtime), obstacle };
        let status = ImportStatus::standing(&standing);
        assert_eq!((status.decision.as_str(), status.code.as_deref()), ("forward", Some("staging")));
        assert_eq!(status.runtime.as_deref(), Some("containerd 1.6.20"));
        assert_eq!(status.staging.as_deref(), Some("/var/lib/containerd/imagelet-staging"));
        assert_eq!(status.registry_folders, None, "a runtime that reports none");
        let required = ImportStatus::standing(&ImportStanding { mode: ImportMode::Require, ..standing.clone() });
        assert_eq!(required.decision, "refuse");
        let free = ImportStatus::standing(&ImportStanding { obstacle: None, ..standing });
        assert_eq!((free.decision.as_str(), free.code), ("import", None));
    }
}
