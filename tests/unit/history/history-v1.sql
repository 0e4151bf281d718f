-- A history as version 1 of the schema wrote it. Never edit this file: it proves that old stores stay readable.
BEGIN TRANSACTION;
CREATE TABLE egs_history_phase (
    id INTEGER NOT NULL,
    pipeline TEXT NOT NULL,
    task TEXT NOT NULL,
    phase INTEGER NOT NULL,
    cpu_milli BIGINT NOT NULL,
    gpu_milli BIGINT NOT NULL,
    memory_bytes BIGINT NOT NULL,
    gpu_memory_bytes BIGINT NOT NULL,
    flavor TEXT NOT NULL,
    input_bytes BIGINT NOT NULL,
    seconds DOUBLE NOT NULL,
    warmup_s DOUBLE NOT NULL,
    outcome TEXT NOT NULL,
    ended_at DOUBLE NOT NULL,
    framework TEXT NOT NULL,
    PRIMARY KEY (id)
);
INSERT INTO "egs_history_phase" VALUES(1,'digits','train',1,4000,1000,1073741824,21474836480,'h100',5,1.5,2.25,'succeeded',1700000000.0,'ray');
INSERT INTO "egs_history_phase" VALUES(2,'digits','train',1,4000,1000,1073741824,21474836480,'h100',5,1.75,0.0,'succeeded',1700000001.0,'ray');
INSERT INTO "egs_history_phase" VALUES(3,'digits','report',0,1000,0,0,0,'',-1,0.3125,0.0,'succeeded',1700000002.0,'sim');
CREATE TABLE egs_history_schema (
    version INTEGER NOT NULL,
    PRIMARY KEY (version)
);
INSERT INTO "egs_history_schema" VALUES(1);
CREATE INDEX egs_history_phase_by_pipeline ON egs_history_phase (pipeline, ended_at);
COMMIT;
