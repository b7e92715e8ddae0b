//! `ValidateVolumeCapabilities`.

use holdfast_proto::csi::v1::validate_volume_capabilities_response::Confirmed;
use holdfast_proto::csi::v1::{ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse};
use tonic::{Request, Status};

use super::object_name::{is_object_name, volume_id};
use super::parameters::{MutableSettings, Parameters};
use super::publish_volume::check_scope;
use super::volumes::{ClusterVolumes, missing};
use crate::capability::Capability;

pub(super) async fn answer(
    volumes: &ClusterVolumes,
    request: Request<ValidateVolumeCapabilitiesRequest>,
) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
    let ValidateVolumeCapabilitiesRequest {
        volume_id: id,
        volume_context,
        volume_capabilities,
        parameters,
        secrets: _,
        mutable_parameters,
    } = request.into_inner();
    let name = volume_id(&id)?;
    if volume_capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities: is empty; name at least one"));
    }
    if !is_object_name(name) {
        return Err(missing(name));
    }
    let volume = volumes.existing(name).await?;
    for capability in &volume_capabilities {
        let scope = match Capability::try_from(Some(capability.clone())) {
            Ok(Capability { access: _, scope }) => scope,
            Err(unsupported) => return Ok(refused(unsupported.to_string())),
        };
        if let Err(status) = check_scope(&volume, scope) {
            return Ok(refused(status.message().to_owned()));
        }
    }
    if !parameters.is_empty() {
        let read = MutableSettings::read(mutable_parameters.clone());
        let difference = match read.and_then(|mutable| Parameters::read(parameters.clone(), mutable)) {
            Ok(wanted) => {
                wanted.difference(&volume.spec).map(|found| format!("parameters: the volume has {found}"))
            }
            Err(status) => Some(status.message().to_owned()),
        };
        if let Some(difference) = difference {
            return Ok(refused(difference));
        }
    }
    match MutableSettings::read(mutable_parameters.clone()) {
        Ok(wanted) if wanted.change_of(&volume.spec).is_some() => {
            return Ok(refused("mutable_parameters: the volume has other values".to_owned()));
        }
        Ok(_as_it_is) => {}
        Err(status) => return Ok(refused(status.message().to_owned())),
    }
    let confirmed = Confirmed { volume_context, volume_capabilities, parameters, mutable_parameters };
    Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
}

fn refused(message: String) -> ValidateVolumeCapabilitiesResponse {
    ValidateVolumeCapabilitiesResponse { confirmed: None, message }
}
