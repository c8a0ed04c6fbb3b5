//! `pull`: ensures one image.

use std::time::Duration;

use async_trait::async_trait;
use imagelet_core::{
    credentials::{Credential, CredentialKind, Secret},
    events::PodIdentity,
    image::{ImageSpec, shown_name},
    manager::{Caller, EnsureRequest, Origin, PullPolicy},
    ports,
};

use super::{Pulls, pods::secrets};
use crate::{
    api::{PullRequest, Pulled, Step, Steps, milliseconds_of, watcher},
    failure::Failure,
    node::{AnswerTime, Command},
};

#[async_trait]
impl Command for PullRequest {
    const NAME: &'static str = "pull";
    const TIME: AnswerTime = AnswerTime::Unlimited;
    type Service = Pulls;
    type Answer = Pulled;

    async fn run(self, pulls: &Pulls, steps: Steps) -> Result<Pulled, Failure> {
        let request = ensure_request(&self)?;
        if pulls.images.local().is_none() {
            steps(Step::ThroughRuntime);
        }
        let ensure = |watcher| pulls.manager.ensure(&request, watcher);
        let ensured = pulls.tracer.ensure(request.image(), watcher(steps), ensure).await;
        let ensured = ensured.map_err(|error| Failure::of_ensure(&error))?;
        let (present, took, size) = match ensured.origin {
            Origin::AlreadyPresent | Origin::Stale { .. } => (true, Duration::ZERO, None),
            Origin::Pulled { took, size } => (false, took, Some(size.0).filter(|size| *size > 0)),
        };
        let took_ms = milliseconds_of(took);
        let warning = matches!(ensured.origin, Origin::Stale { .. }).then_some(ensured.message);
        Ok(Pulled {
            image: self.image,
            id: ensured.id.to_string(),
            present,
            size,
            took_ms,
            warning,
            removed: Vec::new(),
        })
    }
}

fn ensure_request(asked: &PullRequest) -> Result<EnsureRequest, Failure> {
    let policy = match asked.policy.as_str() {
        "" => PullPolicy::default_for(&asked.image)
            .map_err(|error| Failure::invalid(format!("`{}` names no image: {error}", shown_name(&asked.image))))?,
        policy => policy.parse().map_err(Failure::invalid)?,
    };
    let platform = asked.platform.as_deref().map(str::parse).transpose().map_err(Failure::invalid)?;
    let credential = asked.login.as_ref().map(|login| Credential {
        kind: CredentialKind::Basic {
            username: login.user.clone(),
            password: login.password.as_ref().map_or_else(|| Secret::new(""), |password| password.0.clone()),
        },
        server_address: String::new(),
    });
    let pod = asked.pod.clone().unwrap_or_default();
    let is_for_a_pod = !(pod.name.is_empty() && pod.uid.is_empty());
    let pod = PodIdentity { namespace: pod.namespace.into(), name: pod.name.into(), uid: pod.uid.into() };
    Ok(EnsureRequest {
        pull: ports::PullRequest {
            image: ImageSpec::new(asked.image.clone()),
            credential,
            pod,
            platform,
            ..ports::PullRequest::default()
        },
        policy,
        caller: if is_for_a_pod { Caller::Pod } else { Caller::Command },
        container: asked.field.as_str().into(),
        secrets: secrets(&asked.secrets),
        ..EnsureRequest::default()
    })
}
