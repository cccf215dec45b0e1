-- Store each message once in BigQuery. A BigQuery subscription, or a pipeline, appends all copies
-- to `staging`; this statement, scheduled every few minutes, moves the first copy of each id on.
-- It is safe to run again, and while others append: an id that is there is left as it is.
MERGE INTO shop.orders AS target
USING (
  SELECT event_id, data, publish_time
  FROM shop.staging
  -- Copies are minutes apart at most; the older ones have been moved.
  WHERE publish_time > CURRENT_TIMESTAMP - INTERVAL 1 DAY
  QUALIFY ROW_NUMBER() OVER (PARTITION BY event_id ORDER BY publish_time) = 1
) AS source
ON target.event_id = source.event_id
WHEN NOT MATCHED THEN
  INSERT (event_id, data, publish_time)
  VALUES (source.event_id, source.data, source.publish_time)
