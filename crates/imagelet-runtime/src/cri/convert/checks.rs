//! Rejects answers of a runtime that lack required fields (`docs/spec/cri.md §3.3`).

use imagelet_core::{error::RuntimeError, text::quoted};

use crate::cri::v1;

pub fn check_version(response: &v1::VersionResponse) -> Result<(), RuntimeError> {
    let missing: Vec<&str> = [
        ("Version", &response.version),
        ("RuntimeName", &response.runtime_name),
        ("RuntimeApiVersion", &response.runtime_api_version),
        ("RuntimeVersion", &response.runtime_version),
    ]
    .into_iter()
    .filter(|(_, value)| value.is_empty())
    .map(|(name, _)| name)
    .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(RuntimeError::other(format!("not all fields are set in VersionResponse (missing {})", missing.join(", "))))
}

pub fn check_container_status(status: &v1::ContainerStatus) -> Result<(), RuntimeError> {
    let complaint = match &status.metadata {
        _ if status.id.is_empty() => "status.Id is not set".to_owned(),
        None => "status.Metadata is not set".to_owned(),
        Some(metadata) if metadata.name.is_empty() => {
            format!("metadata.Name is not in metadata {}", quoted(&format!("attempt:{}", metadata.attempt)))
        }
        Some(_) if status.created_at == 0 => "status.CreatedAt is not set".to_owned(),
        Some(_) if status.image.as_ref().is_none_or(|spec| spec.image.is_empty()) => {
            "status.Image is not set".to_owned()
        }
        Some(_) if status.image_ref.is_empty() => "status.ImageRef is not set".to_owned(),
        Some(_) => return Ok(()),
    };
    Err(RuntimeError::other(complaint))
}

pub fn check_status(response: &v1::StatusResponse) -> Result<(), RuntimeError> {
    match &response.status {
        Some(status) if status.conditions.len() >= 2 => Ok(()),
        _ => Err(RuntimeError::other("RuntimeReady or NetworkReady condition are not set")),
    }
}

pub fn check_sandbox_status(response: &v1::PodSandboxStatusResponse) -> Result<(), RuntimeError> {
    let status = response.status.clone().unwrap_or_default();
    let complaint = match &status.metadata {
        _ if status.id.is_empty() => "status.Id is not set".to_owned(),
        None => "status.Metadata is not set".to_owned(),
        Some(metadata) if metadata.name.is_empty() || metadata.namespace.is_empty() || metadata.uid.is_empty() => {
            let present = [("name", &metadata.name), ("uid", &metadata.uid), ("namespace", &metadata.namespace)];
            let present = present.into_iter().filter(|(_, value)| !value.is_empty());
            let present: Vec<String> = present.map(|(key, value)| format!("{key}:{value}")).collect();
            format!(
                "metadata.Name, metadata.Namespace or metadata.Uid is not in metadata {}",
                quoted(&present.join(" "))
            )
        }
        Some(_) if status.created_at == 0 => "status.CreatedAt is not set".to_owned(),
        Some(_) => return Ok(()),
    };
    Err(RuntimeError::other(complaint))
}
