//! `doctor`: runs the steps of a pull one by one, and reports the first step that fails.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use imagelet_core::{
    credentials::{Credential, Provided, Secret},
    disks::{DiskProbe as _, StatVfs},
    error::{ErrorClass, RuntimeError, Stage},
    image::{ByteSize, Reference},
    ports::RegistryHost,
};
use imagelet_node::{
    api::{DiskRequest, no_steps},
    config::{Backend, Settings},
    failure::{Failure, FaultWords, advice},
    node::Node,
    serve::{node_credentials, runtime_filesystems},
};
use imagelet_oci::{PathReport, PathStep, check_path, check_signature_policy, registry_hosts};
use serde::Serialize;

use super::login;
use crate::{
    cli::DoctorArgs,
    commands::target::{Target, find_target},
    output::{DIGEST_SHOWN, Format, Table, or_dash, print, print_failure},
    sources::{Context, command_sources},
};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Diagnosis {
    image: String,
    healthy: bool,
    served: bool,
    steps: Vec<DiagnosisStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DiagnosisStep {
    step: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    host: String,
    ok: bool,
    took_ms: u64,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

pub(crate) async fn doctor(arguments: DoctorArgs, context: &Context) -> Result<ExitCode, Failure> {
    let mut steps = Vec::new();
    let format = context.global.output;
    let served = walk(&arguments, context, &mut steps).await.unwrap_or_else(|(step, failure)| {
        steps.push(DiagnosisStep::of_node(step, Err(failure)));
        false
    });
    let failure = decisive(&steps, served).map(|(step, is_first)| explained(step, is_first));
    let diagnosis =
        Diagnosis { image: arguments.image, healthy: failure.is_none(), served, steps, failure: failure.clone() };
    print(format, &diagnosis, |out| {
        table(&diagnosis, format).write(out)?;
        writeln!(out)?;
        writeln!(out, "{}", conclusion(&diagnosis))
    })?;
    let Some(failure) = failure else { return Ok(ExitCode::SUCCESS) };
    print_failure(&failure);
    Ok(ExitCode::FAILURE)
}

/// Adds each finished step. Returns whether a host serves the image. Error: the failed step that ends the diagnosis.
async fn walk(
    arguments: &DoctorArgs,
    context: &Context,
    steps: &mut Vec<DiagnosisStep>,
) -> Result<bool, (&'static str, Failure)> {
    let reference = arguments.image.parse::<Reference>();
    let reference =
        reference.map_err(|error| ("name", Failure::of(&error).at(ErrorClass::NameInvalid, Stage::Name)))?.canonical();
    steps.push(DiagnosisStep::of_node("name", Ok(reference.to_string())));
    let settings = command_sources(context).and_then(|sources| Ok(sources.settings()?));
    let settings = settings.map_err(|failure| ("configuration", failure))?;
    let files = settings.images.registry.hosts_dirs.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    steps.push(DiagnosisStep::of_node("configuration", Ok(format!("registries by {}", files.join(", ")))));
    let (first, found) = match login(&arguments.login, &context.environment) {
        Err(failure) => (None, Err(failure)),
        Ok(Some(given)) => {
            let password = given.password.map_or_else(|| Secret::new(""), |hidden| hidden.0);
            (Some(Credential::basic("", given.user, password)), Ok("given with the command".to_owned()))
        }
        Ok(None) => {
            let (first, count, failure) = node_credential(&settings, reference.repository()).await;
            let found = match count {
                0 => "none: the image has to be public".to_owned(),
                1 => "one of the node".to_owned(),
                count => format!("the first of {count} of the node"),
            };
            (first, failure.map_or(Ok(found), Err))
        }
    };
    steps.push(DiagnosisStep::of_node("credentials", found));
    let mut credentials = Vec::from_iter(first);
    credentials.extend(host_credentials(&settings, &reference, steps).await);
    if let Some(policy) = settings.images.registry.signature_policy.clone() {
        let reference = reference.clone();
        let checked = tokio::task::spawn_blocking(move || check_signature_policy(&policy, &reference)).await;
        let checked = checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        let refused = |error: RuntimeError| {
            let hint = "sign the image, or correct the policy: `imagelet help trust`";
            Failure::of(&error).at(ErrorClass::SignatureRejected, Stage::Policy).or_hint(hint)
        };
        steps.push(DiagnosisStep::of_node("signature", checked.map_err(refused)));
    }
    let mut report = |step: PathStep| steps.push(DiagnosisStep::of_host(step));
    let (config, platform) = (settings.images.registry.clone(), arguments.platform.as_ref());
    let PathReport { layer_bytes, is_served } =
        check_path(config, &reference, &credentials, platform, &mut report).await;
    let place = image_disk(context, &settings).await;
    let room = place.and_then(|place| room(place, ByteSize(layer_bytes.unwrap_or_default())));
    steps.push(DiagnosisStep::of_node("disk", room));
    Ok(is_served)
}

async fn node_credential(settings: &Settings, repository: &str) -> (Option<Credential>, usize, Option<Failure>) {
    let failed = |problem: &String| Failure::new("Failed", problem).at(ErrorClass::Other, Stage::CredentialProvider);
    match node_credentials(settings, repository).await {
        Ok(Provided { credentials, failures }) => {
            let (count, failure) = (credentials.len(), failures.first().map(failed));
            (credentials.into_iter().next().map(|first| first.credential), count, failure)
        }
        Err(failure) => (None, 0, Some(failure)),
    }
}

/// The first credential for each host that is not the image's registry. Adds each new failure of a source to `steps`.
async fn host_credentials(
    settings: &Settings,
    reference: &Reference,
    steps: &mut Vec<DiagnosisStep>,
) -> Vec<Credential> {
    let mut found = Vec::new();
    for RegistryHost { host, repositories } in registry_hosts(&settings.images.registry, reference).await {
        for repository in repositories {
            let (first, _, failure) = node_credential(settings, &repository).await;
            if let Some(failure) = failure.filter(|new| steps.iter().all(|step| step.failure.as_ref() != Some(new))) {
                let step = DiagnosisStep::of_node("credentials", Err(failure));
                steps.push(DiagnosisStep { host: host.clone(), ..step });
            }
            found.extend(first.map(|first| Credential { server_address: host.clone(), ..first }));
        }
    }
    found
}

/// The directory of the images, and the free space on its disk. `None`: this process cannot measure the disk.
type ImageDisk = (PathBuf, Option<ByteSize>);

async fn image_disk(context: &Context, settings: &Settings) -> Result<ImageDisk, Failure> {
    let silent = |failure: Failure| failure.at(ErrorClass::RuntimeUnavailable, Stage::Runtime);
    let target = find_target(context).await;
    let settings = match &target {
        Ok(Target::Daemon(node)) => {
            let request = DiskRequest { samples: Some(0) };
            let disk = Node::Remote(node.clone()).ask(request, no_steps()).await.map_err(silent)?;
            return Ok((disk.mountpoint.into(), (disk.capacity > 0).then_some(ByteSize(disk.available))));
        }
        Ok(Target::Here(found)) => found,
        // If no daemon or store can be found, the configuration says where images are.
        Err(_) => settings,
    };
    let directory = match &settings.images.backend {
        // If the store does not exist yet, the nearest existing parent folder shows its disk.
        Backend::Embedded(store) => {
            let existing = store.engine.place.root.ancestors().find(|path| path.exists());
            existing.unwrap_or(Path::new("/")).to_owned()
        }
        Backend::Cri(runtime) => {
            let reported = runtime_filesystems(runtime, settings.node.request_timeout).await.map_err(silent)?;
            let directory = reported.images.into_iter().next().map(|place| place.mountpoint).unwrap_or_default();
            if !directory.exists() {
                return Ok((directory, None));
            }
            directory
        }
    };
    let disk = StatVfs.look(&directory).map_err(|error| {
        Failure::because(format!("the disk of `{}` cannot be measured", directory.display()), &error)
            .at(ErrorClass::DiskFailed, Stage::Disk)
    })?;
    Ok((directory, Some(disk.available)))
}

fn room((directory, available): ImageDisk, needed: ByteSize) -> Result<String, Failure> {
    let shown = directory.display();
    let Some(available) = available else {
        let is_reported = !directory.as_os_str().is_empty();
        let hidden = || format!("the disk of `{shown}` is not visible from here");
        return Ok(if is_reported { hidden() } else { "the runtime reports no file system of images".to_owned() });
    };
    if available < needed {
        let message = format!("`{shown}` has {available} free, and the layers have {needed} compressed");
        return Err(Failure::new("DiskFull", message).at(ErrorClass::DiskFull, Stage::Disk));
    }
    let layers =
        if needed == ByteSize::ZERO { String::new() } else { format!("; the layers have {needed} compressed") };
    Ok(format!("{available} free at `{shown}`{layers}"))
}

impl DiagnosisStep {
    fn of_node(step: &'static str, outcome: Result<String, Failure>) -> Self {
        let (detail, failure) = match outcome {
            Ok(detail) => (detail, None),
            Err(failure) => (failure.to_string(), Some(failure)),
        };
        Self { step, host: String::new(), ok: failure.is_none(), took_ms: 0, detail, failure }
    }

    fn of_host(step: PathStep) -> Self {
        let PathStep { name, host, detail, took, error } = step;
        let failure = error.map(|error| {
            let fault = error.fault();
            Failure::of(&error)
                .at(fault.class, fault.stage)
                .or_hint(advice(fault.class).unwrap_or("`imagelet help errors` describes the class of the failure"))
        });
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        Self { step: name, host, ok: failure.is_none(), took_ms, detail, failure }
    }
}

/// The failed step that decides the diagnosis, and whether it is the first failed step. If a host failed first and no
/// host serves the image, the step of the last host that answered decides, because an unreachable host proves nothing
/// about the image.
fn decisive(steps: &[DiagnosisStep], served: bool) -> Option<(&DiagnosisStep, bool)> {
    let first = steps.iter().find(|step| !step.ok)?;
    let has_answered = |step: &&DiagnosisStep| {
        let fault = step.failure.as_ref().and_then(|failure| failure.fault.as_deref());
        let is_way = |fault: &FaultWords| ["dns", "connect", "tls", "proxy"].contains(&fault.hop.as_str());
        let is_silent = |fault: &FaultWords| ["timed-out", "connection-lost"].contains(&fault.class.as_str());
        // A failed credential is a failure of the node, although the step names the host that it is for.
        let is_of_host = !step.ok && !step.host.is_empty() && step.step != "credentials";
        is_of_host && fault.is_some_and(|fault| !is_way(fault) && !is_silent(fault))
    };
    let answered = steps.iter().rev().find(has_answered).filter(|_| !served && !first.host.is_empty());
    let step = answered.unwrap_or(first);
    Some((step, std::ptr::eq(step, first)))
}

fn explained(step: &DiagnosisStep, is_first: bool) -> Failure {
    let mut failure = step.failure.clone().unwrap_or_default();
    let place = if step.host.is_empty() { String::new() } else { format!(" at `{}`", step.host) };
    let which = if is_first { "the first step that fails" } else { "the step of the host that answered" };
    let message = format!("{which} is `{}`{place}", step.step);
    failure.causes.insert(0, std::mem::replace(&mut failure.message, message));
    failure
}

fn table(diagnosis: &Diagnosis, format: Format) -> Table {
    let mut table = Table::new(["", "STEP", "HOST", "TIME", "RESULT"]).wide(format == Format::Wide);
    for step in &diagnosis.steps {
        let mark = if step.ok { "✓" } else { "✗" };
        let time = format!("{}ms", step.took_ms);
        let class = step.failure.as_ref().and_then(|failure| failure.fault.as_ref()).map(|fault| fault.class.as_str());
        let result = class.unwrap_or(&step.detail);
        let result = if format == Format::Wide { result.to_owned() } else { with_short_digests(result) };
        table.row([mark, step.step, or_dash(&step.host), &time, &result]);
    }
    table
}

fn with_short_digests(text: &str) -> String {
    let word = |word: &str| match word.get(..DIGEST_SHOWN) {
        Some(head) if word.starts_with("sha256:") && word.len() > DIGEST_SHOWN + 1 => {
            format!("{head}…{}", if word.ends_with(':') { ":" } else { "" })
        }
        _ => word.to_owned(),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

fn conclusion(Diagnosis { image, served, steps, .. }: &Diagnosis) -> String {
    let fails = |name: &str| steps.iter().any(|step| !step.ok && step.step == name);
    if !served || fails("signature") {
        format!("A pull of {image} fails.")
    } else if fails("disk") {
        format!("A pull of {image} fails until the disk has space.")
    } else if steps.iter().any(|step| !step.ok) {
        format!("A host serves {image} all the same, so that a pull may succeed.")
    } else {
        format!("A pull of {image} finds nothing in its way.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnosis_judges_by_the_host_that_answered() {
        let host = |name: &str, step, class, hop| DiagnosisStep {
            host: name.into(),
            ..DiagnosisStep::of_node(step, Err(Failure::default().at(class, hop)))
        };
        let refused = || host("mirror", "connect", ErrorClass::ConnectionRefused, Stage::Connect);
        let silent = || host("mirror", "manifest", ErrorClass::TimedOut, Stage::Manifest);
        let untrusted = || host("mirror", "tls", ErrorClass::CertificateInvalid, Stage::Tls);
        let absent = |name| host(name, "manifest", ErrorClass::ImageUnknown, Stage::Manifest);
        let denied = || host("registry", "manifest", ErrorClass::Unauthorized, Stage::Manifest);
        let helper = || DiagnosisStep::of_node("credentials", Err(Failure::default()));
        let unprovided = || host("mirror", "credentials", ErrorClass::Other, Stage::CredentialProvider);
        let disk = || DiagnosisStep::of_node("disk", Err(Failure::default()));
        let away = || host("registry", "dns", ErrorClass::HostNotFound, Stage::Dns);
        for (what, served, steps, expected) in [
            ("a dead mirror", false, vec![refused(), absent("registry")], ("manifest", "registry")),
            ("a silent mirror", false, vec![silent(), absent("registry")], ("manifest", "registry")),
            ("a mirror that is not trusted", false, vec![untrusted(), denied(), disk()], ("manifest", "registry")),
            ("a dead registry", false, vec![absent("mirror"), away()], ("manifest", "mirror")),
            ("two answers", false, vec![absent("mirror"), denied()], ("manifest", "registry")),
            ("no answer", false, vec![refused(), away()], ("connect", "mirror")),
            ("another host serves it", true, vec![refused()], ("connect", "mirror")),
            ("the node's own fault", false, vec![helper(), denied()], ("credentials", "")),
            ("no credential for a mirror", false, vec![unprovided(), away()], ("credentials", "mirror")),
            ("no credential for a mirror, an answer", false, vec![unprovided(), denied()], ("manifest", "registry")),
        ] {
            let (step, is_first) = decisive(&steps, served).expect(what);
            assert_eq!((step.step, step.host.as_str()), expected, "{what}");
            assert_eq!(is_first, (step.step, &step.host) == (steps[0].step, &steps[0].host), "{what}");
        }
        assert!(decisive(&[DiagnosisStep::of_node("name", Ok(String::new()))], true).is_none());
    }

    #[test]
    fn the_conclusion_says_what_failed_steps_mean_for_a_pull() {
        let host = |step| DiagnosisStep {
            host: "reg.example".into(),
            ..DiagnosisStep::of_node(step, Err(Failure::default()))
        };
        let node = |step| DiagnosisStep::of_node(step, Err(Failure::default()));
        for (served, steps, expected) in [
            (true, vec![DiagnosisStep::of_node("disk", Ok(String::new()))], "A pull of a finds nothing in its way."),
            (true, vec![host("connect")], "A host serves a all the same, so that a pull may succeed."),
            (true, vec![node("credentials")], "A host serves a all the same, so that a pull may succeed."),
            (true, vec![host("credentials")], "A host serves a all the same, so that a pull may succeed."),
            (true, vec![node("disk"), host("connect")], "A pull of a fails until the disk has space."),
            (true, vec![node("signature"), node("disk")], "A pull of a fails."),
            (false, vec![host("connect")], "A pull of a fails."),
        ] {
            let diagnosis = Diagnosis { image: "a".into(), healthy: false, served, steps, failure: None };
            assert_eq!(conclusion(&diagnosis), expected);
        }
    }
}
