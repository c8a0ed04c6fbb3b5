//! The names of Docker Hub, the registry of references without a host.

/// Its name in references and configurations.
pub const DOCKER_HUB: &str = "docker.io";
/// The host that serves its images.
pub const DOCKER_HUB_HOST: &str = "registry-1.docker.io";
/// All its names: in references, in logins of `docker`, and of the host that serves images.
pub const DOCKER_HUB_NAMES: [&str; 3] = [DOCKER_HUB, "index.docker.io", DOCKER_HUB_HOST];

/// Whether a host is Docker Hub by any of its names.
pub fn is_docker_hub(host: &str) -> bool {
    DOCKER_HUB_NAMES.contains(&host)
}
