//! The S3 operations that the store uses, on an in-memory map.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures::TryStreamExt;
use s3s::{S3, S3Request, S3Response, S3Result, dto::*, s3_error};

/// The only bucket.
pub(crate) const BUCKET: &str = "bucket";

type Parts = BTreeMap<i32, Bytes>;

/// An unfinished multipart upload.
struct Upload {
    key: String,
    begun: SystemTime,
    parts: Parts,
}

#[derive(Default)]
pub(crate) struct Backend {
    objects: Mutex<BTreeMap<String, (Bytes, SystemTime)>>,
    uploads: Mutex<BTreeMap<String, Upload>>,
    next_upload: AtomicU64,
    /// Accepts `If-None-Match` and ignores it, as some servers do.
    pub(crate) ignores_conditions: AtomicBool,
    /// Checks that a key is free, and stores the object unconditionally this many milliseconds later, like
    /// proxies that imitate the condition.
    pub(crate) create_gap_ms: AtomicU64,
    /// Difference of its clock to this host's clock.
    pub(crate) clock_shift_seconds: AtomicI64,
    /// The same for the dates of its responses. The client signs with the time from them, and a server
    /// rejects a difference of more than 15 minutes.
    pub(crate) date_shift_seconds: AtomicI64,
    /// Returns no ETag for a stored object.
    pub(crate) hides_tags: AtomicBool,
    /// Answers this many lists with an empty page, although keys follow.
    pub(crate) empty_pages: AtomicU64,
    /// The token of an empty page is that of its request.
    pub(crate) repeats_tokens: AtomicBool,
    /// Fails each object of a multi-object delete.
    pub(crate) denies_deletes: AtomicBool,
}

impl Backend {
    pub(crate) fn keys(&self) -> Vec<String> {
        self.objects.lock().unwrap().keys().cloned().collect()
    }

    /// Returns the time for its responses.
    pub(crate) fn date(&self) -> SystemTime {
        shifted(&self.date_shift_seconds)
    }

    /// Stores an empty object with that time.
    pub(crate) fn put_at(&self, key: &str, modified: SystemTime) {
        self.objects.lock().unwrap().insert(key.to_owned(), (Bytes::new(), modified));
    }

    pub(crate) fn open_uploads(&self) -> usize {
        self.uploads.lock().unwrap().len()
    }

    fn put(&self, key: String, body: Bytes, create_once: bool) -> S3Result<()> {
        let mut objects = self.objects.lock().unwrap();
        if create_once && !self.ignores_conditions.load(Ordering::Relaxed) && objects.contains_key(&key) {
            return Err(s3_error!(PreconditionFailed));
        }
        objects.insert(key, (body, shifted(&self.clock_shift_seconds)));
        Ok(())
    }
}

/// Returns this host's time, shifted.
fn shifted(seconds: &AtomicI64) -> SystemTime {
    let shift = seconds.load(Ordering::Relaxed);
    let (now, seconds) = (SystemTime::now(), Duration::from_secs(shift.unsigned_abs()));
    if shift < 0 { now - seconds } else { now + seconds }
}

fn check_bucket(bucket: &str) -> S3Result<()> {
    if bucket == BUCKET { Ok(()) } else { Err(s3_error!(NoSuchBucket)) }
}

async fn collect(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let chunks: Vec<Bytes> = match body {
        Some(body) => body.try_collect().await.map_err(|_lost| s3_error!(IncompleteBody))?,
        None => Vec::new(),
    };
    Ok(chunks.concat().into())
}

/// Returns an ETag, which S3 sends for every stored object.
fn tag() -> ETag {
    ETag::Strong("tag".to_owned())
}

pub(crate) fn blob(bytes: Bytes) -> StreamingBlob {
    s3s::Body::from(bytes).into()
}

#[async_trait::async_trait]
impl S3 for Backend {
    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let input = req.input;
        check_bucket(&input.bucket)?;
        let create_once = input.if_none_match.as_ref().is_some_and(|condition| condition.is_any());
        let body = collect(input.body).await?;
        let gap_ms = self.create_gap_ms.load(Ordering::Relaxed);
        if create_once && gap_ms > 0 {
            if self.objects.lock().unwrap().contains_key(&input.key) {
                return Err(s3_error!(PreconditionFailed));
            }
            tokio::time::sleep(Duration::from_millis(gap_ms)).await;
            self.put(input.key, body, false)?;
        } else {
            self.put(input.key, body, create_once)?;
        }
        let e_tag = (!self.hides_tags.load(Ordering::Relaxed)).then(tag);
        Ok(S3Response::new(PutObjectOutput { e_tag, ..Default::default() }))
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = req.input;
        check_bucket(&input.bucket)?;
        let found = self.objects.lock().unwrap().get(&input.key).cloned();
        let (body, modified) = found.ok_or_else(|| s3_error!(NoSuchKey))?;
        let whole = body.len() as u64;
        let (body, content_range) = match input.range {
            None => (body, None),
            // Like Amazon S3: a range cannot refer to a byte of an empty object.
            Some(_) if whole == 0 => return Err(s3_error!(InvalidRange)),
            Some(range) => {
                let range = range.check(whole).map_err(|_outside| s3_error!(InvalidRange))?;
                let header = format!("bytes {}-{}/{whole}", range.start, range.end - 1);
                (body.slice(range.start as usize..range.end as usize), Some(header))
            }
        };
        Ok(S3Response::new(GetObjectOutput {
            content_length: Some(body.len() as i64),
            content_range,
            body: Some(blob(body)),
            last_modified: Some(modified.into()),
            ..GetObjectOutput::default()
        }))
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = req.input;
        check_bucket(&input.bucket)?;
        let prefix = input.prefix.unwrap_or_default();
        let after = input.continuation_token.or(input.start_after).unwrap_or_default();
        let limit = input.max_keys.unwrap_or(1000) as usize;
        let empty_pages = self.empty_pages.load(Ordering::Relaxed);
        if empty_pages > 0 {
            self.empty_pages.store(empty_pages - 1, Ordering::Relaxed);
            // No character of a key sorts before this one.
            let next = if self.repeats_tokens.load(Ordering::Relaxed) { after } else { format!("{after}!") };
            return Ok(S3Response::new(ListObjectsV2Output {
                is_truncated: Some(true),
                next_continuation_token: Some(next),
                ..ListObjectsV2Output::default()
            }));
        }
        let objects = self.objects.lock().unwrap();
        let (mut contents, mut folders): (Vec<Object>, Vec<String>) = (Vec::new(), Vec::new());
        let (mut is_truncated, mut last) = (false, None);
        let found = objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after);
        for (key, (body, modified)) in found {
            let end = input.delimiter.as_deref().and_then(|delimiter| key[prefix.len()..].find(delimiter));
            // Its delimiter is one byte.
            let name = end.map_or(key.as_str(), |end| &key[..=prefix.len() + end]);
            if folders.last().is_some_and(|last| last == name) {
                continue;
            }
            if contents.len() + folders.len() == limit {
                is_truncated = true;
                break;
            }
            // All keys of a folder sort before its name followed by the character after the delimiter.
            last = Some(end.map_or_else(|| key.clone(), |end| format!("{}0", &key[..prefix.len() + end])));
            match end {
                Some(_) => folders.push(name.to_owned()),
                None => contents.push(Object {
                    key: Some(key.clone()),
                    size: Some(body.len() as i64),
                    last_modified: Some((*modified).into()),
                    ..Object::default()
                }),
            }
        }
        let folders = folders.into_iter().map(|prefix| CommonPrefix { prefix: Some(prefix) });
        Ok(S3Response::new(ListObjectsV2Output {
            contents: Some(contents),
            common_prefixes: Some(folders.collect()),
            is_truncated: Some(is_truncated),
            next_continuation_token: last.filter(|_| is_truncated),
            ..ListObjectsV2Output::default()
        }))
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        check_bucket(&req.input.bucket)?;
        self.objects.lock().unwrap().remove(&req.input.key);
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        check_bucket(&req.input.bucket)?;
        let keys = req.input.delete.objects.into_iter().map(|object| object.key);
        if self.denies_deletes.load(Ordering::Relaxed) {
            let denied =
                |key| Error { code: Some("AccessDenied".to_owned()), key: Some(key), ..Error::default() };
            let errors = Some(keys.map(denied).collect());
            return Ok(S3Response::new(DeleteObjectsOutput { errors, ..DeleteObjectsOutput::default() }));
        }
        let mut objects = self.objects.lock().unwrap();
        let delete = |key: String| {
            objects.remove(&key);
            DeletedObject { key: Some(key), ..DeletedObject::default() }
        };
        let deleted = Some(keys.map(delete).collect());
        Ok(S3Response::new(DeleteObjectsOutput { deleted, ..DeleteObjectsOutput::default() }))
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        check_bucket(&req.input.bucket)?;
        let upload = self.next_upload.fetch_add(1, Ordering::Relaxed).to_string();
        let (key, begun) = (req.input.key, shifted(&self.clock_shift_seconds));
        self.uploads.lock().unwrap().insert(upload.clone(), Upload { key, begun, parts: Parts::new() });
        let output = CreateMultipartUploadOutput { upload_id: Some(upload), ..Default::default() };
        Ok(S3Response::new(output))
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let input = req.input;
        let body = collect(input.body).await?;
        let mut uploads = self.uploads.lock().unwrap();
        let upload = uploads.get_mut(&input.upload_id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        upload.parts.insert(input.part_number, body);
        let tag = ETag::Strong(format!("part-{}", input.part_number));
        Ok(S3Response::new(UploadPartOutput { e_tag: Some(tag), ..Default::default() }))
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = req.input;
        let upload = self.uploads.lock().unwrap().remove(&input.upload_id);
        let Upload { parts, .. } = upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
        let named = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let mut body = Vec::new();
        for part in named {
            let number = part.part_number.ok_or_else(|| s3_error!(InvalidPart))?;
            body.extend_from_slice(parts.get(&number).ok_or_else(|| s3_error!(InvalidPart))?);
        }
        self.put(input.key, body.into(), false)?;
        Ok(S3Response::new(CompleteMultipartUploadOutput { e_tag: Some(tag()), ..Default::default() }))
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let gone = self.uploads.lock().unwrap().remove(&req.input.upload_id);
        gone.ok_or_else(|| s3_error!(NoSuchUpload))?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    /// Two uploads per page, so that tests get several pages.
    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        check_bucket(&req.input.bucket)?;
        let input = req.input;
        let prefix = input.prefix.unwrap_or_default();
        let after = input.key_marker.zip(input.upload_id_marker);
        let uploads = self.uploads.lock().unwrap();
        let mut found: Vec<_> = uploads.iter().map(|(id, upload)| (upload.key.clone(), id.clone())).collect();
        found.sort();
        found
            .retain(|place| place.0.starts_with(&prefix) && after.as_ref().is_none_or(|after| place > after));
        let is_truncated = found.len() > 2;
        found.truncate(2);
        let last = found.last().cloned().filter(|_| is_truncated);
        let listed = found.into_iter().map(|(key, id)| MultipartUpload {
            initiated: Some(uploads[&id].begun.into()),
            key: Some(key),
            upload_id: Some(id),
            ..MultipartUpload::default()
        });
        Ok(S3Response::new(ListMultipartUploadsOutput {
            uploads: Some(listed.collect()),
            is_truncated: Some(is_truncated),
            next_key_marker: last.as_ref().map(|(key, _)| key.clone()),
            next_upload_id_marker: last.map(|(_, id)| id),
            ..ListMultipartUploadsOutput::default()
        }))
    }
}
