//! Checks an image against the signature policy before the first byte of a layer (`docs/spec/pull.md §13.9`).

use std::path::Path;

use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    image::Reference,
    trusted_files,
};

use crate::{
    engine::{Engine, blocking},
    registry::Resolved,
    signature::{
        self, AttachedSignature, KeySource, POLICY_BYTES_MAX, PublicKeys, Requirement, Rule, SignaturePolicy, Transport,
    },
};

const KEY_BYTES_MAX: u64 = 64 << 10;

impl Engine {
    /// Checks an image against the policy file. Each pull reads the file, so that a change applies at once.
    pub(in crate::engine) async fn check_signatures(&self, resolved: &Resolved) -> Result<(), RuntimeError> {
        let Some(path) = self.config.registry.signature_policy.clone() else { return Ok(()) };
        let reference = resolved.session.reference().clone();
        let (place, requirements) = blocking({
            let reference = reference.clone();
            move || load(&path, |policy| policy.rule(&reference))
        })
        .await?;
        let refused = |why: &str| refused(&reference, &place, why);
        let requirements = requirements.into_iter().collect::<Result<Vec<_>, String>>().map_err(|why| refused(&why))?;
        if requirements.is_empty() {
            return Ok(());
        }
        let failed = format!("could not fetch the signatures of `{reference}`");
        let attached = self.attached(resolved).await.map_err(|error| error.about(&failed))?;
        let check = |(keys, identity)| signature::check(&reference, &keys, identity, &attached);
        requirements.into_iter().try_for_each(check).map_err(|why| refused(&why))
    }

    /// Checks an archive, at a path without links, against the policy file. Signatures in an archive are not read: the
    /// whole archive is accepted or rejected.
    pub(in crate::engine) async fn check_archive(&self, path: &Path, transport: Transport) -> Result<(), RuntimeError> {
        let Some(policy) = self.config.registry.signature_policy.clone() else { return Ok(()) };
        let at = path.to_owned();
        let loaded = blocking(move || load(&policy, |policy| policy.archive_rule(transport, &at)));
        let (rule, requirements) = loaded.await?;
        let why = match requirements.first() {
            None => return Ok(()),
            Some(Err(why)) => why,
            Some(Ok(_)) => "a signature is required, and archives are imported without signatures",
        };
        let path = path.display();
        Err(refusal(format!("the archive `{path}` is refused by the signature policy, rule `{rule}`: {why}")))
    }

    /// The signatures of the image. Signatures of an index are valid for the manifest that the index lists.
    async fn attached(&self, resolved: &Resolved) -> Result<Vec<AttachedSignature>, RuntimeError> {
        let mut attached = resolved.session.signatures(&resolved.root.digest).await?;
        if resolved.chosen.digest != resolved.root.digest {
            attached.extend(resolved.session.signatures(&resolved.chosen.digest).await?);
        }
        Ok(attached)
    }
}

/// The rule of a policy file for an image, and its requirements. Sends no request; blocks on the disk.
///
/// # Errors
/// The policy cannot be used, or rejects the image even with signatures.
pub fn check_signature_policy(policy: &Path, reference: &Reference) -> Result<String, RuntimeError> {
    let (place, requirements) = load(policy, |policy| policy.rule(reference))?;
    if let Some(why) = requirements.iter().find_map(|requirement| requirement.as_ref().err()) {
        return Err(refused(reference, &place, why));
    }
    let needed =
        if requirements.is_empty() { "accepts it unsigned" } else { "requires a signature, which is not checked here" };
    Ok(format!("rule `{place}` {needed}"))
}

fn refused(reference: &Reference, place: &str, why: &str) -> RuntimeError {
    refusal(format!("`{reference}` is refused by the signature policy, rule `{place}`: {why}"))
}

/// The keys of a requirement, or why it rejects every image. A requirement that accepts every image is omitted.
type Loaded = Result<(PublicKeys, signature::Identity), String>;

type LoadedRule = (String, Vec<Loaded>);

fn load(path: &Path, choose: impl FnOnce(&SignaturePolicy) -> Rule<'_>) -> Result<LoadedRule, RuntimeError> {
    let unusable = |why: String| refusal(format!("the signature policy `{}` cannot be used: {why}", path.display()));
    let bytes = trusted_files::read(path, POLICY_BYTES_MAX).map_err(|error| unusable(error.to_string()))?;
    let policy = SignaturePolicy::parse(&bytes).map_err(unusable)?;
    let rule = choose(&policy);
    let load = |requirement: &Requirement| match requirement {
        Requirement::Accept => None,
        Requirement::Reject => Some(Ok(Err("it rejects every image".into()))),
        Requirement::Unsupported(why) => Some(Ok(Err(why.clone()))),
        Requirement::Sigstore { keys, identity } => Some(public_keys(keys).map(|keys| Ok((keys, *identity)))),
    };
    let requirements = rule.requirements.iter().filter_map(load).collect::<Result<Vec<_>, String>>();
    let requirements = requirements.map_err(|why| unusable(format!("{}: {why}", rule.place)))?;
    Ok((rule.place, requirements))
}

fn public_keys(sources: &[KeySource]) -> Result<PublicKeys, String> {
    let text = |source: &KeySource| match source {
        KeySource::Text(text) => Ok(text.clone()),
        KeySource::File(path) => {
            let read = trusted_files::read(path, KEY_BYTES_MAX);
            read.map(|bytes| bytes.to_vec()).map_err(|error| format!("the key `{}`: {error}", path.display()))
        }
    };
    PublicKeys::parse(&sources.iter().map(text).collect::<Result<Vec<_>, String>>()?)
}

fn refusal(message: String) -> RuntimeError {
    let fault = Fault::new(ErrorClass::SignatureRejected, Stage::Policy);
    RuntimeError::new(RuntimeErrorKind::SignatureInvalid, message).with_fault(fault)
}
