//! Create-once: exactly one creator wins; all others get an error that reports the existing object.

use bytes::Bytes;
use futures::future::join_all;

use super::{ConformanceViolation, StoreUnderTest, chain, during, must};
use crate::{CreateError, ErrorKind};

pub(super) async fn then_read(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    for (name, body) in [("empty", Bytes::new()), ("small", Bytes::from_static(b"commit"))] {
        let key = subject.key(name);
        subject.must_create(&key, body.clone()).await?;
        let read = subject.store.get(&key, 64).await.map_err(during("reading the created object"))?;
        must!(read == body, "{key} was read back as {} bytes instead of {}", read.len(), body.len());
    }
    Ok(())
}

pub(super) async fn second_loses(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    let key = subject.key("log");
    subject.must_create(&key, Bytes::from_static(b"first")).await?;
    for body in ["second", "first"] {
        let again = subject.store.create(&key, Bytes::from_static(body.as_bytes())).await;
        must!(
            matches!(again, Err(CreateError::Exists { .. })),
            "creating an existing key with {body:?} answered {again:?} instead of Exists"
        );
    }
    let read = subject.store.get(&key, 64).await.map_err(during("reading the winner"))?;
    must!(read == "first", "the second create replaced the object");
    Ok(())
}

pub(super) async fn one_of_many_wins(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    for round in 0..8 {
        let key = subject.key(&format!("{round:020}"));
        let racers = (0..16u8).map(|writer| {
            let key = key.clone();
            async move { (writer, subject.store.create(&key, Bytes::from(vec![writer; 1000])).await) }
        });
        let mut winners = Vec::new();
        let mut unclear = Vec::new();
        for (writer, outcome) in join_all(racers).await {
            match outcome {
                Ok(_created) => winners.push(writer),
                Err(CreateError::Exists { .. }) => {}
                Err(CreateError::Ambiguous(_)) => unclear.push(writer),
                Err(error @ CreateError::Failed(_)) => {
                    return Err(ConformanceViolation(format!(
                        "a create in a race failed: {}",
                        chain(&error)
                    )));
                }
            }
        }
        let stored = subject.store.get(&key, 1000).await.map_err(during("reading the winner"))?;
        let winner = stored.first().copied();
        must!(stored.len() == 1000, "the winner's object is torn: {} bytes", stored.len());
        must!(winners.len() <= 1, "the store confirmed the creation of {key} to each of {winners:?}");
        let honest = winners.first().copied() == winner || winner.is_some_and(|who| unclear.contains(&who));
        must!(honest, "the store confirmed {winners:?}, but stored the object of {winner:?}");
    }
    Ok(())
}

pub(super) async fn bad_keys(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    for bad in ["", "/absolute", "a//b", "a/../b", "a b", "trailing/"] {
        let refused = subject.store.create(bad, Bytes::new()).await;
        let clear = matches!(&refused, Err(CreateError::Failed(error)) if error.kind() == ErrorKind::Invalid);
        must!(clear, "key {bad:?} was answered with {refused:?}");
        let read = subject.store.get(bad, 1).await;
        must!(
            read.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid),
            "key {bad:?} was read: {read:?}"
        );
    }
    Ok(())
}
