//! Tests of the decision tables: imported or forwarded, and failed imports.

use crate::cri::{RegistrySettings, RuntimeConfiguration, SnapshotterPlace};
use std::{path::PathBuf, time::Duration};

use super::*;
use imagelet_core::{
    error::{Fault, RuntimeError, RuntimeErrorKind},
    image::{ByteSize, Digest, Image, ImageId, ImageUser, Platform},
    ports::{ForwardReason as R, JsonText},
};

fn place(snapshotter: &str) -> SnapshotterPlace {
    SnapshotterPlace { root: PathBuf::from("/var/lib/containerd"), snapshotter: snapshotter.into() }
}

/// containerd 1.7 with one more handler, a sandbox image, and settings for two registries.
fn containerd() -> RuntimeInfo {
    let handlers = [("runc", ""), ("own", "overlayfs"), ("kata", "devmapper")];
    RuntimeInfo {
        name: "containerd".into(),
        version: "1.7.24".into(),
        places: vec![place("overlayfs")],
        configuration: RuntimeConfiguration {
            snapshotter: Some("overlayfs".into()),
            handlers: handlers.map(|(name, own)| (name.into(), own.into())).into(),
            sandbox_images: vec!["registry.k8s.io/pause:3.8".into()],
            registries: RegistrySettings::Reported {
                folders: vec!["/etc/containerd/certs.d".into()],
                mirrors: ["mirrored.io".to_owned()].into(),
                configs: ["private.io:5000".to_owned()].into(),
                has_headers: false,
            },
        },
    }
}

fn failed(stage: ImportStage, fault: Fault) -> ImportError {
    stage.failed(RuntimeError::other("as the test says").with_fault(fault))
}

fn pull(image: &str) -> PullRequest {
    PullRequest { image: ImageSpec::new(image), ..PullRequest::default() }
}

fn ask(mode: ImportMode, runtime: &RuntimeInfo, request: &PullRequest) -> Option<ForwardReason> {
    import_target(mode, &Ok(runtime.clone()), Some(request), false).err()
}

#[test]
fn the_image_decides() {
    let setting = |setting, registry: &str| Some(R::RegistrySetting { setting, registry: registry.into() });
    for (image, decision) in [
        ("app:v1", None),
        ("r.io/team/app@sha256:0000000000000000000000000000000000000000000000000000000000000000", None),
        ("private.io/app", None),
        ("registry.k8s.io/pause:3.8", Some(R::SandboxImage)),
        ("registry.k8s.io/pause:3.9", None),
        ("mirrored.io/app:v1", setting("registry.mirrors", "mirrored.io")),
        ("private.io:5000/app:v1", setting("registry.configs", "private.io:5000")),
        ("", Some(R::NameInvalid)),
        ("app:", Some(R::NameInvalid)),
    ] {
        assert_eq!(ask(ImportMode::Auto, &containerd(), &pull(image)), decision, "{image}");
    }
}

#[test]
fn the_handler_decides() {
    let kata = || Some(R::HandlerSnapshotter { handler: "kata".into(), snapshotter: "devmapper".into() });
    for (handler, annotation, decision) in [
        ("runc", "", None),
        ("own", "own", None),
        ("kata", "", kata()),
        ("", "kata", kata()),
        ("runc", "kata", kata()),
        ("gone", "", Some(R::HandlerUnknown("gone".into()))),
    ] {
        let mut request = pull("app:v1");
        request.image.runtime_handler = handler.into();
        request.image.annotations.push((HANDLER_ANNOTATION.into(), annotation.into()));
        assert_eq!(ask(ImportMode::Auto, &containerd(), &request), decision, "{handler} {annotation}");
    }
}

#[test]
fn the_runtime_decides() {
    type Change = fn(&mut RuntimeInfo);
    let rows: [(&str, Change, Option<ForwardReason>); 9] = [
        ("as it is", |_| {}, None),
        ("cri-o", |facts| facts.name = "cri-o".into(), Some(R::OtherRuntime("cri-o".into()))),
        (
            "native",
            |facts| facts.configuration.snapshotter = Some("native".into()),
            Some(R::Snapshotter("native".into())),
        ),
        ("one folder, none reported", |facts| facts.configuration.snapshotter = None, None),
        (
            "one other folder, none reported",
            |facts| {
                facts.configuration.snapshotter = None;
                facts.places = vec![place("zfs")];
            },
            Some(R::Snapshotter("zfs".into())),
        ),
        (
            "two folders, none reported",
            |facts| {
                facts.configuration.snapshotter = None;
                facts.places.push(place("nydus"));
            },
            Some(R::SnapshotterUnknown),
        ),
        ("two folders, one reported", |facts| facts.places.push(place("nydus")), None),
        (
            "no folder",
            |facts| facts.places.clear(),
            Some(R::RootUnreachable("it reports no folder of the snapshotter".into())),
        ),
        (
            "a warning of registry settings that are not shown",
            |facts| facts.configuration.registries = RegistrySettings::Hidden { has_unread: true },
            Some(R::RegistrySetting { setting: "a deprecated registry setting", registry: "docker.io".into() }),
        ),
    ];
    for (what, change, reason) in rows {
        let mut facts = containerd();
        change(&mut facts);
        let decision = reason;
        assert_eq!(ask(ImportMode::Auto, &facts, &pull("app:v1")), decision, "{what}");
    }
}

#[test]
fn the_mode_decides_first() {
    let (facts, paused) = (containerd(), pull("registry.k8s.io/pause:3.8"));
    let off = Some(R::SwitchedOff);
    for (mode, image, decision) in [
        (ImportMode::Never, "app:v1", off.clone()),
        (ImportMode::Never, "registry.k8s.io/pause:3.8", off),
        (ImportMode::Require, "app:v1", None),
    ] {
        assert_eq!(ask(mode, &facts, &pull(image)), decision, "{mode} {image}");
    }
    assert_eq!(ask(ImportMode::Require, &facts, &paused), Some(R::SandboxImage));
    let any = |runtime: &Result<RuntimeInfo, R>| import_target(ImportMode::Auto, runtime, None, false).err();
    assert_eq!(any(&Ok(facts)), None);
    let away = || R::RuntimeUnknown("it is away".into());
    assert_eq!(any(&Err(away())), Some(away()));
}

#[test]
fn a_survey_is_used_until_it_is_too_old_or_the_runtime_was_started_again() {
    let at = Instant::now();
    let survey =
        |incarnation: Option<&str>| Survey { runtime: containerd(), incarnation: incarnation.map(str::to_owned), at };
    for (of, present, seconds, is_used) in [
        (Some("1"), Some("1"), 0, true),
        (Some("1"), Some("1"), 59, true),
        (Some("1"), Some("1"), 60, false),
        (Some("1"), Some("2"), 0, false),
        (Some("1"), None, 0, false),
        (None, Some("1"), 0, false),
        (None, None, 59, true),
    ] {
        let survey = survey(of);
        let used = survey.younger_than(Duration::from_mins(1), present, at + Duration::from_secs(seconds));
        assert_eq!(used, is_used.then_some(&containerd()), "{of:?} {present:?} after {seconds} s");
    }
}

#[test]
fn an_outage_is_what_ends_without_a_change() {
    for (reason, is_outage) in [
        (R::RuntimeUnknown("away".into()), true),
        (R::ApiAway("away".into()), true),
        (R::ApiClosed("Unimplemented".into()), false),
        (R::OtherRuntime("cri-o".into()), false),
        (R::Rights("none".into()), false),
    ] {
        assert_eq!(reason.is_outage(), is_outage, "{reason}");
    }
}

#[test]
fn a_platform_that_cri_cannot_carry_is_imported() {
    let request = PullRequest { platform: Some(Platform::host()), ..pull("app:v1") };
    assert_eq!(ask(ImportMode::Auto, &containerd(), &request), None);
}

#[test]
fn a_registry_is_forwarded_first_for_ten_minutes_after_that_helped() {
    let (mut preferred, now) = (PreferredRegistries::default(), Instant::now());
    assert!(!preferred.is_preferred("r.io", now));
    preferred.prefer("r.io", now);
    let last = now + Duration::from_secs(599);
    assert!(preferred.is_preferred("r.io", last) && !preferred.is_preferred("other.io", last));
    assert!(!preferred.is_preferred("r.io", now + Duration::from_mins(10)));
    for number in 0..1000 {
        preferred.prefer(&format!("r{number}.io"), now);
    }
    assert_eq!(preferred.0.len(), PREFERRED_MAX);
    preferred.prefer("late.io", now + Duration::from_mins(10));
    assert_eq!(preferred.0.len(), 1, "what is over makes room");

    let (facts, request) = (containerd(), pull("r.io/app:v1"));
    let ask = |mode| import_target(mode, &Ok(facts.clone()), Some(&request), true).err();
    assert_eq!(ask(ImportMode::Auto), Some(R::RegistryPreferred("r.io".into())));
    assert_eq!(ask(ImportMode::Require), None, "where nothing is forwarded");
}

#[test]
fn a_failed_import_is_forwarded_or_fails_by_what_went_wrong() {
    use ErrorClass as C;
    const HELD: &[C] = &[
        C::RateLimited,
        C::ImageUnknown,
        C::BlobUnknown,
        C::Cancelled,
        C::HeldBack,
        C::RateExceeded,
        C::DiskFull,
        C::DigestMismatch,
        C::ContentInvalid,
        C::SignatureRejected,
    ];
    const CURABLE: &[C] = &[
        C::HostNotFound,
        C::ConnectionRefused,
        C::Unreachable,
        C::ConnectionLost,
        C::CertificateInvalid,
        C::TlsFailed,
        C::ProxyFailed,
        C::Unauthorized,
        C::Forbidden,
    ];
    let request = pull("r.io/app:v1");
    for class in C::ALL.iter().copied() {
        for stage in [ImportStage::Fetch, ImportStage::Handover] {
            let wanted = match class {
                class if HELD.contains(&class) => AfterFailure::Fail,
                class => AfterFailure::Forward { remember: CURABLE.contains(&class) },
            };
            let after = after_failure(ImportMode::Auto, &failed(stage, Fault::new(class, Stage::Manifest)), &request);
            assert_eq!(after, wanted, "{class} at {stage:?}");
        }
        let failed = |stage| failed(stage, Fault::new(class, Stage::Manifest));
        for mode in [ImportMode::Require, ImportMode::Never] {
            assert_eq!(after_failure(mode, &failed(ImportStage::Fetch), &request), AfterFailure::Fail, "{class}");
        }
        let unusable = after_failure(ImportMode::Auto, &failed(ImportStage::Unusable), &request);
        assert_eq!(unusable, AfterFailure::Fail, "{class}: the runtime could not use its own pull, either");
        let recorded = after_failure(ImportMode::Auto, &failed(ImportStage::Recorded), &request);
        assert_eq!(recorded, AfterFailure::Fail, "{class}: image records may exist");
    }
}

#[test]
fn an_image_of_another_kind_is_forwarded_and_a_bomb_is_not() {
    let request = pull("r.io/app:v1");
    let after = |stage| {
        let fault = Fault::new(ErrorClass::Unacceptable, stage);
        after_failure(ImportMode::Auto, &failed(ImportStage::Fetch, fault), &request)
    };
    assert_eq!(after(Stage::Manifest), AfterFailure::Forward { remember: false });
    assert_eq!((after(Stage::Unpack), after(Stage::Blob)), (AfterFailure::Fail, AfterFailure::Fail));
    // As the engine reports encrypted and foreign layers.
    let encrypted = RuntimeError::new(RuntimeErrorKind::Unacceptable, "layer `a` is encrypted");
    let after = after_failure(ImportMode::Auto, &ImportStage::Fetch.failed(encrypted), &request);
    assert_eq!(after, AfterFailure::Forward { remember: false });
}

#[test]
fn a_failed_import_of_an_artifact_is_not_forwarded_into_an_empty_folder() {
    for class in ErrorClass::ALL.iter().copied() {
        for stage in [ImportStage::Fetch, ImportStage::Handover, ImportStage::Recorded] {
            for at in [Stage::Manifest, Stage::Blob, Stage::Runtime] {
                let failed = ImportError { is_artifact: true, ..failed(stage, Fault::new(class, at)) };
                let after = after_failure(ImportMode::Auto, &failed, &pull("r.io/model:v1"));
                assert_eq!(after, AfterFailure::Fail, "{class} at {stage:?}, {at}");
            }
        }
    }
}

#[test]
fn an_empty_folder_stays_only_if_no_later_pull_is_imported_without_a_change_of_settings() {
    let failed = |class| R::Failed { fault: Fault::new(class, Stage::Manifest), text: "as the test says".into() };
    for (reason, is_expected) in [
        (R::SwitchedOff, true),
        (R::Snapshotter("native".into()), true),
        (R::Staging("EXDEV".into()), true),
        (R::ApiClosed("Unimplemented".into()), true),
        (R::RegistrySetting { setting: "registry.mirrors", registry: "r.io".into() }, true),
        (R::RegistryPreferred("r.io".into()), false),
        (R::RuntimeUnknown("away".into()), false),
        (R::ApiAway("away".into()), false),
        (failed(ErrorClass::Unauthorized), true),
        (failed(ErrorClass::CertificateInvalid), true),
        (failed(ErrorClass::Unsupported), true),
        (failed(ErrorClass::Unacceptable), false),
        (failed(ErrorClass::HostNotFound), false),
        (failed(ErrorClass::ConnectionLost), false),
        (failed(ErrorClass::RegistryFailed), false),
    ] {
        assert_eq!(is_lasting(&reason), is_expected, "{reason}");
    }
}

#[test]
fn a_folder_is_empty_if_containerd_reports_a_configuration_that_is_neither_an_image_s_nor_a_wasm_module_s() {
    let image = Image {
        id: ImageId::new("id"),
        tags: vec!["r.io/model:v1".to_owned()],
        digests: Vec::new(),
        size: ByteSize(1),
        user: ImageUser::default(),
        spec: ImageSpec::default(),
        pinned: false,
        artifact: None,
    };
    let details = |config: &str| {
        let config = JsonText::new(config).expect("an object");
        ImageDetails::of_config(image.clone(), config)
    };
    let layered = format!(r#"{{"rootfs":{{"diff_ids":["{}"]}}}}"#, Digest::of(b"1"));
    // As containerd reports the configurations of an artifact: `{}` with the fields of an image, and a model's own.
    let artifact = r#"{"architecture":"","os":"","config":{},"rootfs":{"type":"","diff_ids":null}}"#;
    let model = r#"{"descriptor":{"name":"m"},"modelfs":{"type":"layers","diffIds":["sha256:0"]}}"#;
    let scratch = r#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}"#;
    let wasm = r#"{"architecture":"wasm","os":"wasip1","config":{},"rootfs":{"type":"","diff_ids":null}}"#;
    let rows = [(artifact, true), (model, true), (&layered, false), (scratch, false), (wasm, false)];
    for (config, is_empty) in rows {
        assert_eq!(is_empty_folder(&details(config)), is_empty, "{config}");
    }
    assert!(!is_empty_folder(&ImageDetails::bare(image)));
}

#[test]
fn records_that_the_runtime_does_not_show_are_completed_by_its_own_pull() {
    let hidden = Fault::new(ErrorClass::TimedOut, Stage::Runtime);
    let after = after_failure(ImportMode::Auto, &failed(ImportStage::Recorded, hidden), &pull("app:v1"));
    assert_eq!(after, AfterFailure::Forward { remember: false });
}

#[test]
fn a_pull_for_another_platform_is_not_forwarded_since_cri_has_no_word_for_it() {
    let request = PullRequest { platform: Some(Platform::host()), ..pull("app:v1") };
    let fault = Fault::new(ErrorClass::Unauthorized, Stage::Manifest);
    let failed = failed(ImportStage::Fetch, fault);
    assert_eq!(after_failure(ImportMode::Auto, &failed, &request), AfterFailure::Fail);
}
